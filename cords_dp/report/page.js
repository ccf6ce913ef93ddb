// Tables sort by a click on a heading: numbers by value, the rest as text. Without scripts they are plain tables.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = table.tHead ? [...table.tHead.rows[0].cells] : [];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].textContent.trim();
      const number = (text) => Number.parseFloat(text.replace("−", "-"));
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const order = number(x) - number(y);
        return Number.isNaN(order) ? x.localeCompare(y, undefined, {numeric: true}) : order;
      });
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  });
}
