"use strict";
// Without this script everything is on the page; with it, one metric and one scenario at a time, one method or all, and
// tables sort.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  const scenario = document.getElementById("scenario");
  const method = document.getElementById("method"); // none where there is one method
  const filtered = "[data-metric], [data-scenario], [data-method]";
  const show = () => {
    const chosen = {
      metric: document.querySelector("input[name=metric]:checked").value,
      scenario: scenario.value,
      method: method ? method.value : "",
    };
    for (const part of all(filtered)) {
      part.hidden = Object.entries(chosen).some(([what, value]) => value !== "" && (part.dataset[what] ?? value) !== value);
    }
    for (const gallery of all(".gallery:not(.one)")) gallery.classList.toggle("alone", all("figure:not([hidden])", gallery).length === 1);
  };
  for (const input of all("input[name=metric]")) input.addEventListener("change", show);
  scenario.addEventListener("change", show);
  if (method) method.addEventListener("change", show);

  // Numbers by value with undefined ones last, whichever way; words by the alphabet.
  const key = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const compare = (a, b, sign) => {
    if (typeof a === typeof b) return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    return typeof a === "number" ? -1 : 1;
  };
  const sort = (head) => {
    const table = head.closest("table");
    const column = head.cellIndex;
    const first = table.tBodies[0].rows[0];
    const numbers = first && all("tr", table.tBodies[0]).some((row) => "value" in row.cells[column].dataset);
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : numbers; // the largest number first, words from A
    for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    for (const body of all("tbody:not(.fixed)", table)) {
      const rows = [...body.rows];
      rows.sort((a, b) => compare(key(a, column), key(b, column), down ? -1 : 1));
      body.append(...rows);
    }
  };
  for (const button of all("thead button")) button.addEventListener("click", () => sort(button.closest("th")));
  addEventListener("beforeprint", () => all(`${filtered}, details`).forEach((part) => {
    part.hidden = false;
    if (part.localName === "details") part.open = true;
  }));
  addEventListener("afterprint", show);
  show();
})();
