// Sorting and filtering of tables. The page is complete without it.
"use strict";

function valueOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const words = cell.textContent.trim();
  return words === "" ? null : words;
}

function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null); // what is empty stays at the end
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sortBy(table, heading, column) {
  const ascending = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => compare(valueOf(one, column), valueOf(other, column), ascending ? 1 : -1));
  table.tBodies[0].append(...rows);
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(table, heading, column));
  });
}

function makeFilter(table) {
  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = "filter the rows by words";
  box.setAttribute("aria-label", "filter the rows");
  const count = document.createElement("span");
  count.className = "quiet";
  const rows = [...table.tBodies[0].rows];
  const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word));
      shown += !row.hidden;
    });
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
  const line = document.createElement("p");
  line.className = "filter";
  line.append(box, count);
  table.parentElement.before(line);
}

for (const table of document.querySelectorAll("table.sortable")) {
  makeSortable(table);
  if (table.tBodies[0].rows.length > 8) makeFilter(table);
}
