"use strict";
// Draws lines, areas and points over time or another number as SVG, with a legend whose entries can be switched off, the
// values under the pointer, and a zoom by dragging. Colours are those of the page's style, so that a change of theme
// needs no new drawing.
const chart = (() => {
  const { make, makeSvg, count } = common;
  const DAY = 86400;
  const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY];
  const NEAR_PX = 40; // a sample further away is not the one that is pointed at
  const LEAST_DRAG_PX = 5;
  const isKnown = (value) => value !== null && value !== undefined;
  const keyOf = (mark) => mark.group ?? mark.name;

  // ---- axes

  function numberTicks([from, to], max, least = 0) {
    const rough = Math.max((to - from) / max, least);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 5].find((one) => one * power >= rough * 0.999) ?? 10);
    const first = Math.ceil(from / step);
    return Array.from({ length: Math.max(0, Math.floor(to / step) - first + 1) }, (_, number) => (first + number) * step);
  }

  /** Whole steps of local time, each with its label and, at the first and where the day changes, the day below it. */
  function timeTicks([from, to], max) {
    const step = TIME_STEPS.find((one) => one >= (to - from) / max) ?? TIME_STEPS.at(-1);
    const shift = 60 * new Date(1000 * from).getTimezoneOffset();
    const ticks = [];
    for (let t = Math.ceil((from - shift) / step) * step + shift; t <= to; t += step) {
      const date = new Date(1000 * t);
      const clock = date.toLocaleTimeString("en-GB").slice(0, step < 60 ? 8 : 5);
      const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
      const [text, below] = step < DAY ? [clock, `${day} ${date.getFullYear()}`] : [day, String(date.getFullYear())];
      ticks.push({ value: t, text, below });
    }
    const hasRoom = (number) => number > 0 || ticks[1]?.below === ticks[0].below;
    return ticks.map((tick, number) => ({ ...tick, below: hasRoom(number) && tick.below !== ticks[number - 1]?.below ? tick.below : "" }));
  }

  // ---- what is drawn

  /** Adds the areas up: each gets the sum of those before it as its lower line. */
  function stack(marks) {
    const sums = [];
    return marks.map((mark) => {
      if (mark.kind !== "area") return mark;
      const low = mark.x.map((_, number) => sums[number] ?? 0);
      mark.y.forEach((value, number) => { sums[number] = (sums[number] ?? 0) + (value ?? 0); });
      return { ...mark, low, high: sums.slice(0, mark.x.length) };
    });
  }

  /** The highest value that can be seen. */
  function topOf(marks, [from, to]) {
    let top = 1;
    for (const mark of marks) {
      (mark.high ?? mark.y).forEach((value, number) => { if (mark.x[number] >= from && mark.x[number] <= to) top = Math.max(top, value ?? 0); });
    }
    return 1.05 * top;
  }

  /** A line through the points; it breaks off where a value is not known. */
  function lineThrough(xs, ys, { toX, toY }, isStep) {
    let isDown = false;
    let path = "";
    ys.forEach((y, number) => {
      if (isKnown(y)) {
        const [left, top] = [toX(xs[number]).toFixed(1), toY(y).toFixed(1)];
        path += isDown && isStep ? `H${left}V${top}` : `${isDown ? "L" : "M"}${left},${top}`;
      }
      isDown = isKnown(y);
    });
    return path;
  }

  function shapeOf(mark, scales) {
    const { toX, toY } = scales;
    const high = mark.high ?? mark.y;
    const shapes = [];
    if (mark.low) {
      const known = high.map((_, number) => number).filter((number) => isKnown(high[number]) && isKnown(mark.low[number]));
      const of = (values) => known.map((number) => values[number]);
      const back = lineThrough(of(mark.x).reverse(), of(mark.low).reverse(), scales, false);
      // From right to left a step goes up or down first.
      const stepped = mark.isStep ? back.replace(/L([\d.-]+),([\d.-]+)/g, "V$2H$1") : back;
      if (known.length) shapes.push(makeSvg("path", { class: mark.kind === "area" ? "area stacked" : "area", d: `${lineThrough(of(mark.x), of(high), scales, mark.isStep)}${stepped.replace("M", "L")}Z`, fill: mark.colour }));
    }
    if (mark.kind === "points") {
      mark.x.forEach((x, number) => {
        const [left, top] = [toX(x), toY(mark.y[number])];
        shapes.push(mark.texts ? makeSvg("path", { class: "point", d: `M${left.toFixed(1)},${(top - 6).toFixed(1)}l5,9h-10z`, fill: mark.colour })
          : makeSvg("circle", { class: "point", cx: left.toFixed(1), cy: top.toFixed(1), r: 2.5, fill: mark.colour }));
      });
    } else if (mark.kind !== "band") {
      shapes.push(makeSvg("path", { class: "line", d: lineThrough(mark.x, high, scales, mark.isStep), stroke: mark.colour, "stroke-width": mark.width ?? 1, "stroke-dasharray": mark.isDashed ? "7 5" : null }));
      if (mark.hasDots) mark.x.forEach((x, number) => { if (isKnown(high[number])) shapes.push(makeSvg("circle", { cx: toX(x).toFixed(1), cy: toY(high[number]).toFixed(1), r: 2.6, fill: mark.colour })); });
    }
    return shapes;
  }

  const swatch = (mark) => make("i", { class: mark.texts ? "texts" : mark.kind, style: `--colour:${mark.colour}` });

  function drawLegend(state) {
    const keys = [...new Set(state.marks.map(keyOf))];
    state.legend.hidden = !state.hasLegend || !keys.length;
    common.morph(state.legend, ...keys.map((key) => {
      const mark = state.marks.find((one) => keyOf(one) === key);
      return make("button", { type: "button", "data-key": key, "aria-pressed": String(!state.off.has(key)), title: `Show or hide ${mark.name}` },
        swatch(mark), mark.name);
    }));
  }

  function draw(state) {
    const { svg, x, levels } = state;
    drawLegend(state);
    const [width, height] = [svg.clientWidth, svg.clientHeight];
    if (!width) return;
    state.width = width;
    const marks = stack(state.marks.filter((mark) => !state.off.has(keyOf(mark))));
    const top = state.top ?? topOf(marks, x.range);
    const yTicks = numberTicks([0, top], Math.max(2, Math.floor(height / 45)), 1);
    const left = 14 + 7.2 * Math.max(5, ...yTicks.map((tick) => count(tick).length));
    const plot = { left, top: 8, width: Math.max(1, width - left - 18), height: Math.max(1, height - 8 - (x.title || x.isTime ? 40 : 24)) };
    const toX = (value) => (plot.width * (value - x.range[0])) / (x.range[1] - x.range[0]);
    const toY = (value) => plot.height * (1 - value / top);
    const fromX = (px) => x.range[0] + (Math.max(0, Math.min(1, (px - left) / plot.width)) * (x.range[1] - x.range[0]));
    const max = Math.max(2, Math.floor(plot.width / (x.isTime ? 65 : 90)));
    const xTicks = x.isTime ? timeTicks(x.range, max) : numberTicks(x.range, max, x.isWhole ? 1 : 0).map((value) => ({ value, text: String(Number(value.toPrecision(6)).toLocaleString("en-US")) }));

    const inner = makeSvg("svg", { x: left, y: plot.top, width: plot.width, height: plot.height }, ...marks.flatMap((mark) => shapeOf(mark, { toX, toY })));
    const outer = makeSvg("g", { transform: `translate(${left},${plot.top})` },
      ...yTicks.flatMap((tick) => [makeSvg("path", { class: "grid", d: `M0,${toY(tick)}H${plot.width}` }),
        makeSvg("text", { x: -6, y: toY(tick) + 4, "text-anchor": "end" }, count(tick))]),
      ...xTicks.flatMap(({ value, text, below }) => {
        const room = plot.width + 18 - toX(value);
        const place = { x: room < 3.6 * text.length ? plot.width + 16 : toX(value), "text-anchor": room < 3.6 * text.length ? "end" : "middle" };
        return [makeSvg("path", { class: "grid", d: `M${toX(value)},0V${plot.height}` }), makeSvg("text", { class: "x-tick", ...place, y: plot.height + 17 }, text),
          below ? makeSvg("text", { ...place, y: plot.height + 33 }, below) : null].filter(Boolean);
      }),
      x.title ? makeSvg("text", { x: plot.width / 2, y: plot.height + 35, "text-anchor": "middle" }, x.title) : null);
    const lines = makeSvg("g", { transform: `translate(${left},${plot.top})` },
      ...levels.filter(({ value }) => value <= top).flatMap(({ value, name, colour, isStrong }) => [
        makeSvg("path", { class: "line", d: `M0,${toY(value)}H${plot.width}`, stroke: colour, "stroke-width": isStrong ? 2 : 1.2, "stroke-dasharray": isStrong ? null : "2 3" }),
        makeSvg("text", { class: "level", x: 3, y: toY(value) + (isStrong ? -5 : 14), style: `fill:${colour}` }, name)]));
    const cross = makeSvg("path", { class: "cross" });
    const drag = makeSvg("rect", { class: "drag", y: plot.top, height: plot.height });
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`); // scales it on paper
    svg.setAttribute("aria-label", state.label);
    svg.classList.toggle("zoomable", Boolean(state.onZoom));
    svg.replaceChildren(outer, inner, lines, drag, cross);
    Object.assign(state, { shown: marks, plot, toX, fromX, cross, drag });
    showDrag(state);
    showTip(state);
  }

  // ---- the pointer

  function nearest(xs, value) {
    let [low, high] = [0, xs.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low && value - xs[low - 1] < xs[low] - value ? low - 1 : low;
  }

  /** What is under the pointer: a list of [mark, number of the point], and the place of the nearest. */
  function pointedAt({ shown, pointer, plot, toX, fromX }) {
    const away = (mark, number) => Math.abs(plot.left + toX(mark.x[number]) - pointer);
    const found = shown.filter((mark) => mark.x.length && !mark.isSilent)
      .map((mark) => [mark, nearest(mark.x, fromX(pointer))]).filter(([mark, number]) => isKnown(mark.y[number]));
    const best = found.reduce((one, other) => (!one || away(...other) < away(...one) ? other : one), null);
    if (!best || away(...best) > NEAR_PX) return [null, []];
    const at = best[0].x[best[1]];
    const isThere = ([mark, number]) => Math.abs(toX(mark.x[number]) - toX(at)) <= 12;
    return [at, found.filter(isThere)];
  }

  function showTip(state) {
    const { tip, cross, plot, toX, x } = state;
    const [at, found] = isKnown(state.pointer) ? pointedAt(state) : [null, []];
    tip.hidden = at === null;
    cross.setAttribute("d", at === null ? "" : `M${plot.left + toX(at)},${plot.top}v${plot.height}`);
    if (at === null) return;
    const rows = found.map(([mark, number]) => (mark.texts ? make("div", {}, swatch(mark), mark.texts[number])
      : make("div", { class: "row" }, swatch(mark), make("b", {}, count(mark.y[number])), ` ${mark.name}`)));
    if (found.some(([mark]) => mark.kind === "area")) rows.reverse(); // as they lie on each other
    tip.replaceChildren(make("div", { class: "dim" }, x.format(at)), ...rows);
    const isRight = toX(at) > plot.width / 2;
    Object.assign(tip.style, { left: isRight ? "auto" : `${plot.left + toX(at) + 12}px`, right: isRight ? `${state.width - plot.left - toX(at) + 12}px` : "auto", top: `${state.legend.offsetHeight + 12}px` });
  }

  function showDrag({ drag, dragged, pointer, plot, toX }) {
    const [from, to] = isKnown(dragged) ? [plot.left + toX(dragged), Math.max(plot.left, Math.min(plot.left + plot.width, pointer))].sort((a, b) => a - b) : [0, 0];
    drag.setAttribute("x", from);
    drag.setAttribute("width", to - from);
  }

  function start(container) {
    const state = { off: new Set(), pointer: null, dragged: null };
    state.legend = make("div", { class: "legend", role: "group", "aria-label": "Shown in the chart" });
    // A finger scrolls the page; only a mouse or a pen zooms.
    state.svg = makeSvg("svg", { role: "img" });
    state.tip = make("div", { class: "tip", hidden: "" });
    container.append(state.legend, state.svg, state.tip);
    state.legend.addEventListener("click", (event) => {
      const key = event.target.closest("button")?.dataset.key;
      if (key === undefined) return;
      if (!state.off.delete(key)) state.off.add(key);
      draw(state);
    });
    const move = (event) => { state.pointer = event.clientX - state.svg.getBoundingClientRect().left; showDrag(state); showTip(state); };
    const leave = () => { state.pointer = state.dragged = null; showDrag(state); showTip(state); };
    const listen = (name, act) => state.svg.addEventListener(name, (event) => { if (state.plot) act(event); });
    listen("pointermove", move);
    listen("pointerleave", () => { if (!isKnown(state.dragged)) leave(); });
    listen("pointercancel", leave);
    listen("pointerdown", (event) => {
      move(event);
      if (!state.onZoom || event.button || event.pointerType === "touch") return;
      state.svg.setPointerCapture(event.pointerId);
      state.dragged = state.fromX(state.pointer);
    });
    listen("pointerup", () => {
      const { dragged, pointer } = state;
      if (!isKnown(dragged)) return;
      state.dragged = null;
      showDrag(state);
      if (Math.abs(state.plot.left + state.toX(dragged) - pointer) >= LEAST_DRAG_PX) state.onZoom([dragged, state.fromX(pointer)].sort((a, b) => a - b));
    });
    listen("dblclick", () => state.onZoom?.(null));
    new ResizeObserver(() => { if (state.plot && state.svg.clientWidth !== state.width) draw(state); }).observe(container);
    return state;
  }

  /**
   * Draws a chart into an element, or draws it anew.
   * marks: each has name, kind (line, area: stacked; band, points), x, y, colour and, as needed: low (the lower line of a
   *   band, or of what is filled below a line), width, isDashed, isStep, hasDots, texts (of points), group (marks
   *   that the legend lists once and hides together), isSilent (not under the pointer)
   * levels: horizontal lines with value, name, colour, isStrong
   * x: range, format(value) and, as needed, isTime, isWhole, title
   * top: the highest value of the other axis; without it, the highest that can be seen
   * onZoom([from, to]) is called after a drag, onZoom(null) on a double click
   */
  function show(container, { marks, levels = [], x, top = null, label, hasLegend = true, onZoom = null }) {
    container.chart ??= start(container);
    Object.assign(container.chart, { marks, levels, x, top, label, hasLegend, onZoom });
    draw(container.chart);
  }

  return { show };
})();
