"use strict";
// Shows the data of one recording. Every text of it goes into the page as a text node, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { PALETTE, at, make, count, plural, choice, startTheme, sparkline, showTable } = common;

  // ---- text

  function seconds(value) {
    if (value === null) return "";
    if (value === 0) return "0 s";
    if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
    if (value < 1) return `${(value * 1e3).toPrecision(3).replace(/\.?0+$/, "")} ms`;
    if (value < 120) return `${value.toFixed(1)} s`;
    return value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
  }

  function rate(perMinute) {
    if (!perMinute) return "";
    if (perMinute >= 600) return `${count(perMinute / 60)}/s`;
    return perMinute >= 1.5 ? `${count(perMinute)}/min` : `${count(perMinute * 60)}/h`;
  }

  const place = (file, line) => (line ? `${file}:${line}` : file);

  /** The last two parts of a path: enough to tell files apart, short enough for a column. */
  const short = (path) => path.split("/").slice(-2).join("/");

  /** The package that a file of a library belongs to. */
  function packageOf(file) {
    const found = /(?:site|dist)-packages\/([^/]+)/.exec(file) || /\/python3?[\d.]*\/([^/]+)/.exec(file)
      || /^<frozen ([\w.]+)/.exec(file);
    return found ? found[1].replace(/\.py$/, "") : short(file);
  }

  // ---- summary

  function showSummary() {
    at("verdict").textContent = data.verdict;
    at("verdict").classList.toggle("wrong", Boolean(data.problem));
    // What is wrong comes first; a mere suspicion after all that is known.
    if (!data.is_misused && !data.failed.length) document.querySelector("main").append(at("bad"));
    for (const [name, value] of data.facts) {
      const isBad = (name === "Dropped events" && value !== "0") || (name === "Mode" && value !== "full");
      at("facts").append(make("div", { class: name === "Command" ? "long" : isBad ? "warn" : null },
        make("dt", {}, name), make("dd", {}, value)));
    }
    at("warnings").append(...data.warnings.map((line) => make("li", {}, line)));
    at("warnings").hidden = !data.warnings.length;
    if (data.left_out.length) {
      at("left-out").textContent = `This page holds the largest. Left out: ${data.left_out.join(", ")}.`;
      at("left-out").hidden = false;
    }
    for (const section of document.querySelectorAll("section[id]")) {
      at("nav").append(make("a", { href: `#${section.id}` }, section.dataset.name));
    }
  }

  // ---- chart

  let chartBy = "kind";
  let zoom = null; // [from, to] that the reader has dragged, in seconds

  function drawChart() {
    const series = chartBy === "kind" ? data.by_kind : data.by_site;
    at("unzoom").hidden = !zoom;
    chart.show(at("chart"), {
      marks: series.map((one, number) => ({ kind: "area", name: one.name, x: data.grid, y: one.series, colour: PALETTE[number % PALETTE.length], isStep: true })),
      x: { range: zoom ?? [data.grid[0], data.grid.at(-1)], title: "seconds", format: (value) => `${value.toFixed(1)} s` },
      label: `Open descriptors over time, stacked by ${chartBy}`,
      onZoom: (range) => { zoom = range; drawChart(); },
    });
  }

  // ---- flame graph

  const flame = { weight: "live", isFolded: true, focus: null, root: null, query: "" };

  /** Merges the stacks from the outside in. A run of library frames becomes one node when they are folded. */
  function buildFlame() {
    const root = { label: "all stacks", isRoot: true, value: 0, children: new Map(), frames: new Set(), parent: null, depth: 0 };
    const weights = data.weights[flame.weight];
    data.flame.forEach((stack, number) => {
      const weight = weights[number];
      if (!weight) return;
      let node = root;
      node.value += weight;
      for (const run of runsOf(data.stacks[stack])) {
        const key = run.isFolded ? `library ${run.packages.join("/")}` : run.frames[0];
        let child = node.children.get(key);
        if (!child) {
          child = { ...describe(run), value: 0, children: new Map(), frames: new Set(), parent: node, depth: node.depth + 1 };
          node.children.set(key, child);
        }
        run.frames.forEach((frame) => child.frames.add(frame));
        child.value += weight;
        node = child;
      }
    });
    flame.root = flame.focus = root;
  }

  /** Cuts a stack into its frames, outermost first; with folding, library frames that follow each other are one run. */
  function runsOf(stack, isFolded = flame.isFolded) {
    const runs = [];
    for (const frame of [...stack].reverse()) {
      const isLibrary = data.frames[frame][4];
      const last = runs.at(-1);
      if (isFolded && isLibrary && last && last.isFolded) last.frames.push(frame);
      else runs.push({ frames: [frame], isFolded: Boolean(isFolded && isLibrary) });
    }
    for (const run of runs) {
      if (run.isFolded) run.packages = [...new Set(run.frames.map((frame) => packageOf(data.frames[frame][0])))];
    }
    return runs;
  }

  function describe(run) {
    const [file, line, name, , isLibrary] = data.frames[run.frames[0]];
    if (run.isFolded) return { label: run.packages.join(" › "), isLibrary: true, isFolded: true };
    return { label: `${name || "?"}  ${place(short(file), line)}`, isLibrary: Boolean(isLibrary), hue: hueOf(file) };
  }

  function hueOf(text) {
    let hash = 0;
    for (let i = 0; i < text.length; i += 1) hash = (hash * 31 + text.charCodeAt(i)) % 9973;
    return 10 + (hash % 45);
  }

  function drawFlame() {
    const container = at("flame");
    container.replaceChildren();
    at("flame-reset").disabled = flame.focus === flame.root;
    container.classList.toggle("searching", Boolean(flame.query));
    if (!flame.root.value) {
      container.style.height = "auto";
      const what = { growth: "No stack grows.", live: "No descriptor was open at the end.", born: "No descriptor was made." };
      container.append(make("p", { class: "empty" }, what[flame.weight]));
      showFrame(null);
      return;
    }
    const least = 2 / (container.clientWidth || 1000);
    let rows = 0;
    const elements = [];
    function add(node, left, width) {
      rows = Math.max(rows, node.depth + 1);
      const isNarrow = width * (container.clientWidth || 1000) < 24;
      const kinds = [node.isRoot && "root", node.isLibrary && "library", node.isFolded && "folded", isNarrow && "narrow", isHit(node) && "hit",
        node.depth < flame.focus.depth && "above"];
      const element = make("div", { class: ["frame", ...kinds.filter(Boolean)].join(" "), tabindex: "0", role: "button" },
        isNarrow ? "" : node.label);
      element.style.cssText = `left:${left * 100}%;width:${width * 100}%;top:${node.depth * 20}px;--hue:${node.hue ?? 210}`;
      element.node = node;
      elements.push(element);
    }
    for (let node = flame.focus.parent; node; node = node.parent) add(node, 0, 1);
    const waiting = [[flame.focus, 0, 1]];
    while (waiting.length) {
      const [node, left, width] = waiting.pop();
      add(node, left, width);
      let from = left;
      for (const child of [...node.children.values()].sort((a, b) => b.value - a.value)) {
        const part = (width * child.value) / node.value;
        if (part < least) break; // the rest is narrower still
        waiting.push([child, from, part]);
        from += part;
      }
    }
    container.append(...elements);
    container.style.height = `${Math.min(rows * 20 + 2, window.innerHeight * 0.7)}px`;
    showFrame(flame.focus);
  }

  const weightText = (value) => (flame.weight === "growth" ? `grows by ${rate(value) || "0"}`
    : flame.weight === "live" ? `${count(value)} live` : `${count(value)} born`);

  /** Shows a node's frame and its source line above the graph. */
  function showFrame(node) {
    const info = at("flame-info");
    if (!node) {
      info.replaceChildren();
      return;
    }
    const share = `${((100 * node.value) / flame.root.value).toFixed(1)} %`;
    const frames = [...node.frames];
    const head = make("div", {}, make("b", {}, weightText(node.value)), make("span", { class: "dim" }, ` · ${share}`));
    if (!node.parent) {
      head.append(make("span", { class: "dim" }, flame.query ? ` · ${searchText()}` : " · hover for the source line, click to zoom"));
      info.replaceChildren(head);
      return;
    }
    const [file, line, name, text] = data.frames[frames[0]];
    const where = node.isFolded
      ? `${plural(frames.length, "library frame")}, first ${name} in ${place(file, line)}`
      : `${name} in ${place(file, line)}`;
    info.replaceChildren(head, make("div", { class: "where" }, where), make("code", { class: "code source" }, text));
  }

  const matches = (frame) => data.frames[frame].slice(0, 4).join(" ").toLowerCase().includes(flame.query);
  const isHit = (node) => Boolean(flame.query) && [...node.frames].some(matches);

  function searchText() {
    let found = 0;
    const waiting = [flame.root];
    while (waiting.length) {
      const node = waiting.pop();
      if (isHit(node)) found += node.value;
      else waiting.push(...node.children.values());
    }
    return `search finds ${((100 * found) / flame.root.value).toFixed(1)} %`;
  }

  function startFlame() {
    flame.weight = ["growth", "live", "born"].find((name) => data.weights[name].some((weight) => weight > 0)) || "live";
    const rebuild = () => { buildFlame(); drawFlame(); };
    choice(at("flame-weight"), ["live", "growth", "born"], flame.weight, (name) => { flame.weight = name; rebuild(); });
    at("flame-fold").addEventListener("change", (event) => { flame.isFolded = event.target.checked; rebuild(); });
    at("flame-reset").addEventListener("click", () => { flame.focus = flame.root; drawFlame(); });
    at("flame-search").addEventListener("input", (event) => { flame.query = event.target.value.trim().toLowerCase(); drawFlame(); });
    const container = at("flame");
    const nodeOf = (event) => event.target.closest(".frame")?.node;
    const zoom = (node) => { if (node) { flame.focus = node; drawFlame(); showFrame(node); } };
    container.addEventListener("click", (event) => zoom(nodeOf(event)));
    container.addEventListener("keydown", (event) => { if (event.key === "Enter") zoom(nodeOf(event)); });
    for (const name of ["mouseover", "focusin"]) {
      container.addEventListener(name, (event) => { if (nodeOf(event)) showFrame(nodeOf(event)); });
    }
    container.addEventListener("mouseleave", () => showFrame(flame.root.value ? flame.focus : null));
    rebuild();
  }

  // ---- sites

  const kindsOf = (site) => make("span", {}, ...Object.entries(site.kinds).map(([kind, number]) =>
    make("span", { class: "kind" }, `${kind} ${count(number)}`)));

  function showSites() {
    const number = (name, key, extra = {}) => ({ name, value: (site) => site[key], isNumber: true, ...extra });
    showTable(at("sites-table"), [
      {
        name: "Site", class: "site", value: (site) => `${place(site.file, String(site.line).padStart(6))}`,
        cell: (site) => make("div", { title: place(site.file, site.line) },
          make("span", { class: site.is_library ? "name dim" : "name" }, make("b", {}, place(short(site.file), site.line)), ` ${site.function}`),
          make("code", { class: "code" }, site.text), kindsOf(site)),
      },
      { name: "Over time", value: (site) => Math.max(...site.series), cell: (site) => sparkline(site.series), isOptional: true },
      number("Live", "live", { help: "open at the end" }),
      number("Growth", "per_minute", { cell: (site) => rate(site.per_minute), classOf: (site) => (site.per_minute ? "grows" : null), help: "slope of the baseline" }),
      number("Born", "born"),
      number("Closed", "closed"),
      number("Peak", "peak"),
      number("Oldest", "oldest_s", { cell: (site) => (site.oldest_s ? seconds(site.oldest_s) : ""), isOptional: true }),
      number("p50", "p50_s", { cell: (site) => seconds(site.p50_s), isOptional: true, help: "lifetime: half of them were closed sooner" }),
      number("p99", "p99_s", { cell: (site) => seconds(site.p99_s), isOptional: true, help: "lifetime: 99 % were closed sooner" }),
      number("Processes", "processes", { isOptional: true }),
    ], data.sites, {
      noun: "site", searchable: true, detail: siteDetail,
      textOf: (site) => [site.file, site.function, site.text, ...Object.keys(site.kinds), ...site.targets, ...site.owners].join(" "),
    });
  }

  function siteDetail(site) {
    const list = (title, lines) => (lines.length
      ? [make("h3", {}, title), make("ul", {}, ...lines.map((line) => make("li", {}, line)))] : []);
    const stacks = site.stacks.slice(0, 5).map(([stack, live, born]) => make("div", { class: "stack" },
      make("div", { class: "hint" }, `${count(live)} live, ${count(born)} born`), ...framesOf(stack)));
    const facts = [
      ["Kinds", Object.entries(site.kinds).map(([kind, number]) => `${kind} ${count(number)}`).join(", ")],
      ["Lifetime", site.p50_s === null ? "" : `p50 ${seconds(site.p50_s)}, p99 ${seconds(site.p99_s)}`],
      ["Oldest", site.oldest_s ? seconds(site.oldest_s) : ""],
      ["Closed by another thread", site.closed_elsewhere ? count(site.closed_elsewhere) : ""],
      ["Copies in forked processes", site.inherited ? count(site.inherited) : ""],
      ["Processes", `${site.pids.join(", ")}${site.processes > site.pids.length ? `, and ${site.processes - site.pids.length} more` : ""}`],
    ].filter(([, value]) => value).map(([name, value]) => `${name}: ${value}`);
    return make("div", { class: "detail-grid" },
      make("div", {}, make("h3", {}, `Made here (${plural(site.stack_count, "stack")}${site.stack_count > stacks.length ? `, the largest ${stacks.length}` : ""})`),
        ...(stacks.length ? stacks : [make("p", { class: "empty" }, "These stacks are not in this page.")])),
      make("div", {}, ...list("Kept open by", site.owners), ...list("Lead to", site.targets),
        ...list("Closed at", site.closers.map(([where, number]) => `${where} (${count(number)}×)`)), ...list("Counts", facts)));
  }

  /** The frames of a stack, outermost first as in a traceback. Long runs of library frames open on a click. */
  function framesOf(stack) {
    if (!data.stacks[stack].length) return [make("div", { class: "dim" }, "(no Python frame)")];
    return runsOf(data.stacks[stack], true).flatMap((run) => {
      const lines = run.frames.map((number) => {
        const [file, line, name, text, isLibrary] = data.frames[number];
        return make("div", { class: isLibrary ? "at library" : "at" }, `${place(file, line)} in `, make("b", {}, name), make("code", { class: "code" }, text));
      });
      if (run.frames.length < 3) return lines;
      return [make("details", {}, make("summary", {}, `${run.frames.length} frames in ${run.packages.join(", ")}`), ...lines)];
    });
  }

  // ---- bad descriptors, processes, origin unknown

  /** The line to change, and the one that failed. */
  function blame(history) {
    const line = (name, [where, text]) => [make("dt", {}, name), make("dd", {}, make("b", {}, where), make("code", { class: "code" }, text))];
    const isOne = history.culprit.join() === history.victim.join();
    return [...line("Culprit", history.culprit), ...(isOne ? [] : line("Failed", history.victim))];
  }

  function showHistories() {
    const container = at("histories");
    if (!data.histories.length) container.append(make("p", { class: "empty" }, "No call used or closed a descriptor that was closed before."));
    for (const history of data.histories) {
      const box = make("div", { class: "history" },
        make("span", { class: "tag" }, history.kind),
        make("span", { class: "dim" }, history.fd < 0 ? "a closed object" : `descriptor ${history.fd}`, history.count > 1 ? `, ${plural(history.count, "descriptor")} by the same lines` : ""),
        make("dl", { class: "blame" }, ...blame(history)),
        make("p", {}, history.sentence),
        history.doubt ? make("div", { class: "doubt" }, history.doubt) : null);
      showTable(box, [
        { name: "Time", isNumber: true, value: (step) => step.t_s, cell: (step) => `${step.t_s.toFixed(6)} s` },
        { name: "Event", value: (step) => step.what, cell: (step) => make("span", {}, make("b", {}, step.what), step.note ? make("span", { class: "note" }, ` ← ${step.note}`) : null) },
        { name: "Where", class: "site", value: (step) => step.where, cell: (step) => make("div", { title: step.where }, make("span", { class: "name" }, `${short(step.where)} ${step.function}`), make("code", { class: "code" }, step.text)) },
        { name: "Thread", value: (step) => step.tid, cell: (step) => `${step.pid}/${step.tid}`, isOptional: true },
        { name: "Lifetime", isNumber: true, isOptional: true, value: (step) => step.lifetime, help: "counts how often the number was given out" },
      ], history.steps, {
        noun: "step", detail: (step) => make("div", { class: "stack" }, ...(step.stack === null ? ["This stack is not in this page."] : framesOf(step.stack))),
      });
      container.append(box);
    }
    if (data.failed.length) {
      at("failed-table").append(make("h3", {}, "Calls that failed because no descriptor was free"));
      showTable(at("failed-table"), [
        { name: "Call", value: (row) => row.call }, { name: "Error", value: (row) => row.error },
        { name: "Times", isNumber: true, value: (row) => row.count },
        { name: "Where", class: "site", value: (row) => row.where, cell: (row) => make("div", { title: row.where }, make("span", { class: "name" }, `${short(row.where)} ${row.function}`), make("code", { class: "code" }, row.text)) },
      ], data.failed, { noun: "call" });
    }
  }

  function showProcesses() {
    showTable(at("processes-table"), [
      {
        name: "Process", class: "short", value: (row) => row.pid,
        cell: (row, isSorted) => {
          const element = make("span", { class: "code" }, `${row.depth && !isSorted ? "└ " : ""}${row.pid}`);
          element.style.paddingLeft = isSorted ? "0" : `${Math.min(row.depth, 12) * 1.1}em`;
          return element;
        },
      },
      { name: "Open", isNumber: true, value: (row) => row.live, help: "at its end" },
      { name: "Peak", isNumber: true, value: (row) => row.peak },
      { name: "Began", isNumber: true, value: (row) => row.start_s, cell: (row) => `${(row.start_s ?? 0).toFixed(2)} s` },
      { name: "Ended", class: "short", value: (row) => row.end_s, cell: (row) => (row.end_s === null ? row.ended : `${row.end_s.toFixed(2)} s ${row.ended}`) },
      { name: "Dropped", isNumber: true, isOptional: true, value: (row) => row.dropped, help: "events that the ring has overwritten" },
      { name: "Unknown", isNumber: true, isOptional: true, value: (row) => row.unknown, help: "open descriptors whose birth was not seen" },
      { name: "Python", isOptional: true, value: (row) => row.python },
      { name: "Command", class: "wide", value: (row) => row.command, cell: (row) => make("span", { class: "code" }, row.command, row.note ? make("span", { class: "note" }, ` ${row.note}`) : null) },
    ], data.processes, { noun: "process", searchable: true, textOf: (row) => `${row.pid} ${row.command} ${row.ended} ${row.python}` });
  }

  function showUnknown() {
    at("unknown-hint").textContent = `${((data.coverage ?? 0) * 100).toFixed(1)} % of all births in traced processes were seen. The others were made without libc, or before the recording began.`;
    showTable(at("unknown-table"), [
      { name: "Leads to", class: "wide", value: (row) => row.target, cell: (row) => make("code", {}, row.target) },
      { name: "Count", isNumber: true, value: (row) => row.count },
    ], data.unknown, { noun: "target", searchable: data.unknown.length > 10, textOf: (row) => row.target });
  }

  let resized = null;
  window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawFlame, 150); });

  showSummary();
  choice(at("chart-by"), ["kind", "site"], chartBy, (name) => { chartBy = name; drawChart(); });
  at("unzoom").addEventListener("click", () => { zoom = null; drawChart(); });
  startTheme(at("theme"));
  showSites();
  showHistories();
  showProcesses();
  showUnknown();
  drawChart();
  startFlame();
  document.documentElement.dataset.ready = "yes"; // for tests
})();
