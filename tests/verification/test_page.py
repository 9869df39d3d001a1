"""The HTML page of a report, opened in a real browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from replicax.errors import Table
from replicax.verification import Finding, Report, Status
from replicax.verification._facts import Coverage, Facts, ReplicaTime, Span

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
PHONE, DESKTOP = 375, 1280
LONG = "state['encoder']['layers_11']['self_attention']['query']['kernel']"

# What the page is like inside a frame of each width, written into the DOM for `--dump-dom`.
PROBE = """<!doctype html><body>
<script>
const found = {};
function probe(width) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:800px;border:0`;
  frame.onload = () => {
    const page = frame.contentDocument.documentElement;
    for (const each of frame.contentDocument.querySelectorAll("details")) each.open = true;
    const small = [...frame.contentDocument.querySelectorAll("body *")].filter(
      (x) => x.textContent.trim() && x.children.length === 0).map((x) =>
      parseFloat(frame.contentWindow.getComputedStyle(x).fontSize) *
      (x.tagName === "text" ? x.getScreenCTM().a : 1));
    found[width] = {scroll: page.scrollWidth, client: page.clientWidth,
      smallest: Math.min(...small), pictures: frame.contentDocument.querySelectorAll("svg").length,
      requests: frame.contentWindow.performance.getEntriesByType("resource").length};
    document.body.dataset.found = JSON.stringify(found);
  };
  frame.srcdoc = PAGE;
  document.body.append(frame);
}
const PAGE = %s;
[%d, %d].forEach(probe);
</script>"""


def finding(status, check="parity"):
    table = Table(("array", "apart", "line"), [(LONG, 0.25, "train.py:1234 in replica_step")] * 3)
    return Finding(check, status, f"`{LONG}` differs <by> 0.25.", table, why="A & B.", fix="Do.")


@pytest.fixture(scope="module")
def report():
    facts = Facts(
        coverage=tuple(Coverage(i, (4, 4, 4, 3 - i), (0, 4, 8, 12)) for i in range(4)),
        losses=(2.0, 1.5, float("nan"), 1.0),
        losses_of_one=(2.0, 1.5, 1.2, 1.0),
        times=tuple(ReplicaTime(i, f"cpu:{i}", 0.1, 0.05, None) for i in range(4)),
        spans=tuple(
            Span(i, j / 1000, 0.0004, kind)
            for i in range(4)
            for j, kind in enumerate(["compute", "communication"] * 20)
        ),
    )
    findings = tuple(finding(status) for status in Status)
    return Report("train_step", "MirroredStrategy#1", 4, findings, facts)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed: tools/browser.sh does")
def test_a_browser_shows_it_at_phone_width_without_errors(report, tmp_path):
    text = json.dumps(report.to_html()).replace("</", "<\\/")
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE % (text, PHONE, DESKTOP), encoding="utf-8")

    ended = subprocess.run(
        [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            probe.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    said = [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
    assert said == []
    found = json.loads(html.unescape(re.search(r'data-found="([^"]*)"', ended.stdout)[1]))
    for width in (PHONE, DESKTOP):
        seen = found[str(width)]
        assert seen["scroll"] <= seen["client"] <= width, seen
        assert seen["smallest"] >= 10, seen
        assert (seen["pictures"], seen["requests"]) == (3, 0)


class Links(HTMLParser):
    """What a page would ask others for, and the tags that are open."""

    def __init__(self):
        super().__init__()
        self.asked, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.asked += [v for k, v in attrs if k in ("src", "href") and not v.startswith("data:")]
        if tag not in ("meta", "link", "rect", "line", "circle", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()


def test_the_page_asks_nobody_for_anything(report):
    page = report.to_html()

    links = Links()
    links.feed(page)
    assert (links.asked, links.open) == ([], [])
    assert "<script" not in page
    assert "url(" not in page
    assert "@import" not in page
    assert "&lt;by&gt;" in page


def test_a_report_without_facts_is_a_page_too(tmp_path):
    path = tmp_path / "report.html"

    Report("step", "MirroredStrategy#1", 2, (finding(Status.PASSED),)).write_html(path)

    assert "<svg" not in path.read_text(encoding="utf-8")
