"use strict";
(function () {
  var root = document.documentElement;
  var theme = document.getElementById("theme");
  function dark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function nameTheme() {
    theme.textContent = dark() ? "Light mode" : "Dark mode";
  }
  theme.hidden = false;
  theme.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    nameTheme();
  });
  nameTheme();

  // A cell is a number if it says so in data-value; numbers that are missing come last either way.
  function compare(column, sign) {
    return function (a, b) {
      var x = a.cells[column], y = b.cells[column];
      if (x.dataset.value === undefined) {
        return sign * x.textContent.localeCompare(y.textContent, undefined, { numeric: true });
      }
      var p = parseFloat(x.dataset.value), q = parseFloat(y.dataset.value);
      if (isNaN(p) || isNaN(q)) { return isNaN(p) - isNaN(q); }
      return sign * (p - q);
    };
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    var heads = Array.from(table.tHead.rows[0].cells), body = table.tBodies[0];
    heads.forEach(function (head, column) {
      var button = head.querySelector("button");
      if (button) button.addEventListener("click", function () {
        var down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        Array.from(body.rows).sort(compare(column, down ? -1 : 1)).forEach(function (row) { body.append(row); });
      });
    });
  });

  document.querySelectorAll("[data-filters]").forEach(function (box) {
    var rows = Array.from(document.getElementById(box.dataset.filters).tBodies[0].rows);
    var words = box.querySelector("input"), verdict = box.querySelector("select"), said = box.querySelector("output");
    function apply() {
      var shown = 0, wanted = words.value.toLocaleLowerCase();
      rows.forEach(function (row) {
        var fits = row.textContent.toLocaleLowerCase().includes(wanted) &&
          (!verdict.value || row.dataset.verdict === verdict.value);
        row.hidden = !fits;
        shown += fits;
      });
      said.textContent = shown + " of " + rows.length + " rows";
    }
    words.addEventListener("input", apply);
    verdict.addEventListener("change", apply);
    box.hidden = false;
    apply();
  });

  function open() {
    var entry = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (var fold = entry; fold; fold = fold.parentElement) {
      if (fold.tagName === "DETAILS") { fold.open = true; }
    }
    if (entry && entry.tagName === "DETAILS") { entry.querySelector("summary").focus(); }
  }
  addEventListener("hashchange", open);
  open();
})();
