"use strict";
// The page is whole without this: tables get sorting and a filter, cells open their samples in a window of their own.
const read = (cell) => {
  const text = cell.textContent.trim();
  const number = parseFloat(text.replace(/,/g, ""));
  return Number.isNaN(number) ? text.toLowerCase() : number;
};
const compare = (a, b) => {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1; // what has no number comes last
};
for (const table of document.querySelectorAll("table.browsed")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  if (rows.length < 2) continue;
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = rows.map((row) => [read(row.cells[column]), row]);
      keyed.sort(([a], [b]) => (down && typeof a === typeof b ? compare(b, a) : compare(a, b)));
      body.append(...keyed.map(([, row]) => row));
    });
  });
  if (rows.length < 12) continue;
  const label = document.createElement("label");
  const input = document.createElement("input");
  const count = document.createElement("output");
  label.className = "filter";
  input.type = "search";
  input.placeholder = "cat, tail …";
  label.append("Show only ", input, " ", count);
  table.parentElement.prepend(label);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filter = () => {
    const wanted = input.value.trim().toLowerCase();
    rows.forEach((row, i) => { row.hidden = !texts[i].includes(wanted); });
    const left = rows.filter((row) => !row.hidden).length;
    count.textContent = wanted ? `${left} of ${rows.length}` : "";
  };
  input.addEventListener("input", filter);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { input.value = ""; filter(); }
  });
}
for (const link of document.querySelectorAll("a.opens")) {
  const dialog = document.getElementById(link.hash.slice(1));
  link.addEventListener("click", (event) => { event.preventDefault(); dialog.showModal(); });
}
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("a.close")) { event.preventDefault(); dialog.close(); }
  });
}
