"""tf.distribute's `experimental_` names for methods that are no experiment any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TensorFlowAliases:
    """Old names, each the method without the prefix."""

    distribute_dataset: Callable[..., Any]
    distribute_datasets_from_function: Callable[..., Any]
    distribute_values_from_function: Callable[..., Any]
    local_results: Callable[..., Any]

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """See `distribute_dataset`."""
        return self.distribute_dataset(dataset, options)

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> Any:
        """See `distribute_datasets_from_function`."""
        return self.distribute_datasets_from_function(dataset_fn, options)

    def experimental_distribute_values_from_function(self, value_fn: Callable[..., Any]) -> Any:
        """See `distribute_values_from_function`."""
        return self.distribute_values_from_function(value_fn)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """See `local_results`."""
        results: tuple[Any, ...] = self.local_results(value)
        return results
