/* Hovering only: every number that appears here is in a table of the page already. */
"use strict";
(() => {
  const tip = document.createElement("div"), cursor = document.createElement("div");
  tip.id = "tip";
  cursor.id = "cursor";
  tip.hidden = cursor.hidden = true;
  document.body.append(tip);

  const history = document.getElementById("history");
  const heads = history ? [...history.tHead.rows[0].cells].map(cell => cell.textContent) : [];
  const rows = history ? [...history.tBodies[0].rows] : [];

  function show(text, event) {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const top = event.clientY - 14 - height < 0 ? event.clientY + 14 : event.clientY - 14 - height;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = top + "px";
  }

  function hide() {
    tip.hidden = cursor.hidden = true;
  }

  function seconds(row) {
    return Number(row.cells[0].textContent);
  }

  /* The row of the history that the pointer is above: the first that is not earlier. */
  function moment(chart, event) {
    const area = chart.querySelector(".area"), box = area.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    if (!rows.length || share < 0 || share > 1) return hide();
    const end = Number(chart.dataset.end);
    const row = rows.find(row => seconds(row) >= share * end) || rows[rows.length - 1];
    const columns = chart.dataset.columns.split(" ").map(Number);
    area.append(cursor);
    cursor.style.left = 100 * Math.min(1, seconds(row) / end) + "%";
    cursor.hidden = false;
    show([`${row.cells[0].textContent} s`, ...columns.map(i => `${heads[i]}: ${row.cells[i].textContent}`)].join("\n"), event);
  }

  document.addEventListener("pointermove", event => {
    const target = event.target instanceof Element ? event.target : document.body;
    const named = target.closest("[data-tip]"), chart = target.closest("[data-columns]");
    if (chart) moment(chart, event);
    else if (named) show(named.dataset.tip, event);
    else hide();
  });
  document.addEventListener("pointerleave", hide);
  document.addEventListener("scroll", hide, true);
})();
