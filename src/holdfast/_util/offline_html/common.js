"use strict";
// What the pages of holdfast share. Every text goes into a page as a text node, never as markup.
const common = (() => {
  const PALETTE = ["#4c8dd9", "#e2884a", "#5bab6e", "#c65d8a", "#8f7bd1", "#b8a13a", "#3fa9a5", "#d9655c", "#7d8fa5",
    "#9a7a55", "#6fae3d", "#b667c4", "#8b929c"];
  const SVG = "http://www.w3.org/2000/svg";

  const at = (id) => document.getElementById(id);

  // ---- elements

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  /** Makes an element. Children are elements or text; attributes that are undefined, null or false are left out. */
  const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const makeSvg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  /**
   * Makes an element's children equal to new ones and keeps every node that is equal already, so that focus, selection
   * and scroll position stay. Children with a data-key are matched by it, others by their place. Listeners stay with
   * the old nodes: what is replaced this way listens through its container.
   */
  function morph(element, ...children) {
    const keyed = new Map([...element.children].filter((one) => one.dataset?.key).map((one) => [one.dataset.key, one]));
    let next = element.firstChild;
    for (const child of children.filter((one) => one !== null && one !== undefined)) {
      const wanted = child instanceof Node ? child : document.createTextNode(child);
      const old = wanted.dataset?.key ? keyed.get(wanted.dataset.key) : next;
      if (!old || old.nodeName !== wanted.nodeName || (old.dataset?.key && old.dataset.key !== wanted.dataset?.key)) {
        element.insertBefore(wanted, next);
        continue;
      }
      if (old === next) next = next.nextSibling;
      else element.insertBefore(old, next);
      if (old.isEqualNode(wanted)) continue;
      if (old.nodeType !== Node.ELEMENT_NODE) {
        old.nodeValue = wanted.nodeValue;
        continue;
      }
      for (const { name } of [...old.attributes]) if (!wanted.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of wanted.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      morph(old, ...wanted.childNodes);
    }
    while (next) {
      const rest = next.nextSibling;
      next.remove();
      next = rest;
    }
  }

  // ---- text

  const count = (value) => Math.round(value).toLocaleString("en-US");
  const many = (noun) => noun + (noun.endsWith("s") ? "es" : "s");
  const plural = (value, noun) => `${count(value)} ${value === 1 ? noun : many(noun)}`;

  // ---- controls

  /** A row of buttons of which one is pressed. */
  function choice(container, names, pressed, onChange) {
    const buttons = names.map((name) => make("button", {
      type: "button", "aria-pressed": String(name === pressed),
      onclick: (event) => {
        for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
        onChange(name);
      },
    }, name[0].toUpperCase() + name.slice(1)));
    container.append(...buttons);
  }

  /** Lets the reader switch between light and dark; calls `onChange` when the colours have changed. */
  function startTheme(button, onChange = () => {}) {
    const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
    button.addEventListener("click", () => {
      const shown = document.documentElement.dataset.theme || (prefersDark.matches ? "dark" : "light");
      document.documentElement.dataset.theme = shown === "dark" ? "light" : "dark";
      onChange();
    });
    prefersDark.addEventListener("change", onChange);
  }

  // ---- pictures

  function sparkline(series) {
    const max = Math.max(1, ...series);
    const points = series.map((value, number) => `${number},${(19 - (18 * value) / max).toFixed(1)}`);
    return makeSvg("svg", { class: "spark", viewBox: `0 0 ${series.length - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true" },
      makeSvg("path", { d: `M0,20 L${points.join(" L")} L${series.length - 1},20` }));
  }

  // ---- tables

  const FIRST_ROWS = 100;

  /**
   * Shows rows as a table and returns a function that shows other rows in their place.
   * A column has a name, value(row) to sort by, cell(row) if it shows something else, and isNumber, isOptional, class.
   * keyOf(row) tells rows apart when they are replaced.
   */
  function showTable(container, columns, rows, { noun, searchable, detail, textOf, keyOf, empty = "None." }) {
    let sorted = null; // [column, direction]; null: as given
    let query = "";
    let max = FIRST_ROWS;
    const body = make("tbody");
    const status = make("span", { class: "hint" });
    const more = make("button", { type: "button", onclick: () => { max = Infinity; draw(); } }, "Show all");
    const headers = columns.map((column) => make("th", { class: classesOf(column), title: column.help, scope: "col" },
      make("button", { type: "button", onclick: () => sort(column) }, column.name)));
    const search = make("input", {
      type: "search", placeholder: `Filter ${many(noun)}`, "aria-label": `Filter ${many(noun)}`,
      oninput: (event) => { query = event.target.value.trim().toLowerCase(); draw(); },
    });

    function classesOf(column, row) {
      const own = row && column.classOf ? column.classOf(row) : null;
      return [column.isNumber && "number", column.isOptional && "optional", column.class, own].filter(Boolean).join(" ");
    }

    function sort(column) {
      const first = column.isNumber ? -1 : 1;
      if (!sorted || sorted[0] !== column) sorted = [column, first];
      else if (sorted[1] === first) sorted = [column, -first];
      else sorted = null;
      headers.forEach((header, number) => {
        if (sorted && columns[number] === sorted[0]) header.setAttribute("aria-sort", sorted[1] > 0 ? "ascending" : "descending");
        else header.removeAttribute("aria-sort");
      });
      draw();
    }

    function compare(a, b) {
      const [column, direction] = sorted;
      const one = column.value(a) ?? null;
      const other = column.value(b) ?? null;
      if (one === other) return 0;
      if (one === null) return 1; // what has no value comes last either way
      if (other === null) return -1;
      return (one < other ? -1 : 1) * direction;
    }

    function draw() {
      let shown = query ? rows.filter((row) => textOf(row).toLowerCase().includes(query)) : rows;
      if (sorted) shown = [...shown].sort(compare);
      const made = shown.slice(0, max).map(makeRow);
      if (detail) body.replaceChildren(...made);
      else morph(body, ...made);
      status.textContent = shown.length === rows.length ? plural(rows.length, noun)
        : `${count(shown.length)} of ${plural(rows.length, noun)}`;
      for (const part of parts) part.hidden = !rows.length;
      more.hidden = shown.length <= max;
      none.hidden = Boolean(rows.length);
    }

    function makeRow(row) {
      const cells = columns.map((column) => make("td", { class: classesOf(column, row) },
        column.cell ? column.cell(row, Boolean(sorted)) : column.isNumber ? count(column.value(row)) : column.value(row)));
      if (!detail) return make("tr", { "data-key": keyOf?.(row) }, ...cells);
      const element = make("tr", { class: "opens", tabindex: "0", "aria-expanded": "false" }, ...cells);
      const toggle = () => {
        const isOpen = element.classList.toggle("open");
        element.setAttribute("aria-expanded", String(isOpen));
        if (isOpen) element.after(make("tr", { class: "detail" }, make("td", { colspan: columns.length }, detail(row))));
        else element.nextElementSibling.remove();
      };
      element.addEventListener("click", toggle);
      element.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(); });
      return element;
    }

    const none = make("p", { class: "empty" }, empty);
    const parts = [make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...headers)), body)), more];
    if (searchable) parts.unshift(make("div", { class: "table-bar" }, search, status));
    container.append(...parts, none);
    draw();
    return (others, emptyNow = empty) => { rows = others; none.textContent = emptyNow; draw(); };
  }

  return { PALETTE, at, make, makeSvg, morph, count, many, plural, choice, startTheme, sparkline, showTable };
})();
