"use strict";
// Shows the state document: once in a report, again and again while its watcher runs. A new document changes only what
// differs, so that zoom, focus, selection and scroll position stay. Every text of it is a text node, never markup.
(() => {
  const { PALETTE, at, make, makeSvg, morph, count, plural, choice, startTheme, sparkline, showTable } = common;
  const HOUR = 3600;
  const DAY = 24 * HOUR;

  let state = null; // the last document
  let selected = null; // the name of the target that is shown

  // ---- numbers and times

  const UNKNOWN = "–";
  const isKnown = (value) => value !== null && value !== undefined;
  const counted = (value) => (isKnown(value) ? count(value) : UNKNOWN);
  const percent = (ratio) => `${ratio > 0 && ratio < 0.01 ? "<1" : Math.round(100 * ratio)}\u202f%`;

  /** Three digits and a unit, as in holdfast's messages. */
  function bytes(value) {
    if (!isKnown(value)) return UNKNOWN;
    if (value < 1000) return `${Math.round(value)}\u202fB`;
    let unit = "kB";
    for (unit of ["kB", "MB", "GB", "TB"]) {
      value /= 1000;
      if (value < 999.5) break;
    }
    return `${value.toFixed(Math.max(0, 3 - String(Math.floor(value)).length))}\u202f${unit}`;
  }

  /** Two units at most, the second only below ten of the first. */
  function span(seconds) {
    if (seconds < 1) return "less than 1\u202fs";
    const sizes = [[DAY, "d"], [HOUR, "h"], [60, "min"], [1, "s"]];
    const place = sizes.findIndex(([size]) => seconds >= size);
    const [size, name] = sizes[place];
    const whole = Math.floor(seconds / size);
    if (place === 3 || whole >= 10) return `${count(seconds / size)}\u202f${name}`;
    const [smaller, smallerName] = sizes[place + 1];
    const rest = Math.floor((seconds - whole * size) / smaller);
    return rest ? `${whole}\u202f${name} ${rest}\u202f${smallerName}` : `${whole}\u202f${name}`;
  }

  /** A rate with as many digits as tell it from zero. */
  function rate(perHour) {
    const [value, unit] = Math.abs(perHour) >= 1 || perHour === 0 ? [perHour, "h"] : [perHour * 24, "d"];
    const digits = Math.abs(value) >= 10 || value === 0 ? count(Math.abs(value)) : Math.abs(value).toPrecision(2);
    return `${value > 0 ? "+" : value < 0 ? "−" : ""}${digits}/${unit}`;
  }

  /** Shows control characters, and those that turn the direction of writing, as escapes: a process can have any name. */
  function visible(value) {
    if (typeof value === "string") {
      return value.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);
    }
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(visible);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [visible(name), visible(one)]));
  }

  const isSameDay = (a, b) => new Date(a * 1000).toDateString() === new Date(b * 1000).toDateString();
  const clock = (t) => new Date(t * 1000).toLocaleTimeString("en-GB");
  const day = (t) => new Date(t * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const near = (t) => (isSameDay(t, state.now) ? clock(t)
    : Math.abs(t - state.now) < 180 * DAY ? `${day(t)} ${clock(t).slice(0, 5)}` : `${day(t)} ${new Date(t * 1000).getFullYear()}`);
  const fullTime = (t) => new Date(t * 1000).toLocaleString("en-GB", { dateStyle: "full", timeStyle: "long" });

  /** A moment, in local time; the tooltip has the date, the zone and how long ago it was. */
  function moment(t) {
    if (!isKnown(t)) return UNKNOWN;
    const ago = state.now - t;
    const apart = ago >= 1 ? `, ${span(ago)} ${state.live ? "ago" : "before the end"}` : ago <= -1 ? `, in ${span(-ago)}` : "";
    return make("time", { datetime: new Date(t * 1000).toISOString(), title: fullTime(t) + apart }, near(t));
  }

  // ---- verdicts

  const ICONS = {
    check: "M4.6 8.3 7 10.7 11.4 5.7", question: "M6 6.2a2 2 0 1 1 2.9 1.8c-.6.3-.9.7-.9 1.4M8 11.4v.3",
    settle: "M4 6c1.6 3.2 3.6 4.4 8 4.4", grow: "M4.4 11 11 4.9M7.4 4.7h3.8v3.8", drop: "M8 4.2v4.6M8 11.3v.4", cross: "m5.3 5.3 5.4 5.4m0-5.4-5.4 5.4",
    end: "M5.6 5.6h4.8v4.8H5.6z", loop: "M11.3 9.2A3.6 3.6 0 1 1 10.9 5.9M11.4 4v2.3H9.1",
  };
  const VERDICTS = {
    OK: ["good", "check", 0], UNCLEAR: ["calm", "question", 1], SETTLING: ["calm", "settle", 2], GROWING: ["warn", "grow", 3],
    LEAK: ["bad", "drop", 4], EXHAUSTED: ["bad", "cross", 6],
  };
  const ILL = ["stopped", "frozen", "hung", "failing"];

  /**
   * What to say of a target in one word. What died because it had no descriptor left, or is restarted again and again,
   * comes first; a worker that gets nothing done is worse than one that leaks; what has ended otherwise comes last.
   */
  function styleOf(target) {
    const [tone, icon, rank] = VERDICTS[target.verdict] ?? ["none", "question", 1];
    const isEnded = target.alive === false;
    if (isEnded && target.verdict === "EXHAUSTED") return { word: "EXHAUSTED, ended", tone, icon, rank: 8 };
    if (target.restart_loop) return { word: "RESTART LOOP", tone: "bad", icon: "loop", rank: 7 };
    if (isEnded) return rank > 2 ? { word: `${target.verdict}, ended`, tone, icon, rank: rank - 10 } : { word: "ENDED", tone: "none", icon: "end", rank: -10 };
    const health = target.guard?.health;
    if (ILL.includes(health) && rank < 6) return { word: health.toUpperCase(), tone: "bad", icon: "cross", rank: 5 };
    return { word: target.verdict ?? "UNKNOWN", tone, icon, rank };
  }

  const chip = ({ word, icon }) => make("span", { class: "verdict" },
    makeSvg("svg", { viewBox: "0 0 16 16", fill: "none", stroke: "currentColor", "stroke-width": "1.7", "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" },
      makeSvg("circle", { cx: 8, cy: 8, r: 6.9 }), makeSvg("path", { d: ICONS[icon] })), word);

  const byUrgency = (a, b) => styleOf(b).rank - styleOf(a).rank;

  const keyOf = (target) => target.target;
  const shownTarget = () => state.targets.find((target) => keyOf(target) === selected) ?? null;

  // ---- headline and tabs

  function showHeadline(targets) {
    const worst = targets[0];
    const look = worst ? styleOf(worst) : { word: state.live ? "WAITING" : "EMPTY", tone: "none", icon: "question" };
    morph(at("headline"), make("div", { class: "headline", "data-tone": look.tone }, chip(look), make("p", {}, sentence(state.sentence))),
      worst ? null : make("p", { class: "empty" }, state.live ? "The watcher shows a process here as soon as one matches the PID or the --name that it was given."
        : "This recording ended before a process was seen."));
    at("problems").hidden = !state.problems?.length;
    morph(at("problems"), ...(state.problems ?? []).map((line) => make("li", {}, sentence(line))));
    document.title = worst ? `${look.word} · ${keyOf(worst)} ${counted(worst.fds)}/${counted(worst.limit)} · holdfast watch` : "holdfast watch";
    const colour = getComputedStyle(at("headline").firstChild).borderLeftColor;
    const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="${colour}"/></svg>`;
    if (at("icon").dataset.colour !== colour) Object.assign(at("icon"), { href: `data:image/svg+xml,${encodeURIComponent(icon)}` }).dataset.colour = colour;
  }

  /** Begins with a capital, unless it begins with a name. */
  function sentence(text) {
    const isName = !/^[a-z]+[ ,:]/.test(text ?? "") || state.targets.some((target) => text.startsWith(`${target.target} `));
    return isName ? text ?? "" : text[0].toUpperCase() + text.slice(1);
  }

  function showTabs(targets) {
    at("tabs").hidden = targets.length < 2;
    morph(at("tabs"), ...targets.map((target) => make("button", {
      type: "button", role: "tab", "data-key": keyOf(target), "data-tone": styleOf(target).rank < 0 ? "none" : styleOf(target).tone,
      "aria-selected": String(keyOf(target) === selected), "aria-controls": "target", tabindex: keyOf(target) === selected ? "0" : "-1", title: target.command,
    }, make("span", { class: "name" }, target.target), chip(styleOf(target)),
    make("span", { class: "used" }, target.alive === false ? "ended" : `pid ${target.pid ?? UNKNOWN}`),
    make("span", { class: "used" }, `${counted(target.fds)} / ${counted(target.limit)}`))));
  }

  function startTabs() {
    const select = (button) => {
      if (!button) return;
      selected = button.dataset.key;
      zoom = null;
      show();
      at("tabs").querySelector("[aria-selected=true]")?.focus();
    };
    at("tabs").addEventListener("click", (event) => select(event.target.closest("button")));
    at("tabs").addEventListener("keydown", (event) => {
      const buttons = [...at("tabs").children];
      const here = buttons.indexOf(document.activeElement);
      const next = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      select(buttons[(next + buttons.length) % buttons.length]);
    });
  }

  // ---- figures of one target

  function figure(name, value, note, { tone, isWide, series, meter, help } = {}) {
    const known = series?.filter(isKnown) ?? [];
    const line = Math.max(...known) - Math.min(...known) > 0.25 * Math.max(...known) ? known : []; // else there is nothing to see
    return make("div", { class: isWide ? "figure wide" : "figure", "data-tone": tone ?? "none", title: help, "data-key": name },
      make("h3", {}, name), make("div", { class: value.length > 16 ? "value long" : "value" }, ...[value].flat()),
      meter ?? null, line.length > 1 ? sparkline(every(line, 84)) : null, note ? make("div", { class: "note" }, ...[note].flat()) : null);
  }

  /** At most so many of the values, evenly spread, with the last. */
  function every(values, max) {
    const step = Math.ceil(values.length / max);
    return values.filter((_, number) => (values.length - 1 - number) % step === 0);
  }

  const toneOf = (ratio) => (!isKnown(ratio) ? "none" : ratio >= 0.85 ? "bad" : ratio >= 0.5 ? "warn" : "calm");

  function meter(ratio, label, tone = toneOf(ratio)) {
    const value = Math.max(0, Math.min(1, ratio ?? 0));
    return make("div", { class: "meter", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * value), "data-tone": tone },
      make("div", { style: `width:${(100 * value).toFixed(1)}%` }));
  }

  function showAbout(target) {
    const isEnded = target.alive === false;
    const facts = [
      isKnown(target.pid) ? [`pid ${target.pid}`] : null,
      isKnown(target.about) && target.about !== target.pid ? [`counts are of process ${target.about}, the worst of its tree`] : null,
      isKnown(target.started) ? ["started ", moment(target.started), isKnown(target.uptime_s) && !isEnded ? ` (${span(target.uptime_s)} ago)` : ""] : null,
      isKnown(state.since) ? ["watched since ", moment(state.since), isKnown(state.every_s) ? `, every ${span(state.every_s)}` : ""] : null,
      state.host ? [`on ${clip(state.host, 60)}`] : null,
    ].filter(Boolean);
    morph(at("about"), make("span", { class: "name" }, target.target),
      state.targets.length > 1 ? make("span", { "data-tone": styleOf(target).tone }, chip(styleOf(target))) : null,
      make("span", { class: "hint" }, ...facts.flatMap((fact, number) => (number ? [" · ", ...fact] : fact))),
      target.restart_loop ? make("p", { class: "sentence", "data-key": "loop" }, make("b", {}, sentence(target.restart_loop))) : null,
      make("p", { class: "sentence", "data-key": "sentence" }, sentence(target.sentence)),
      target.command ? make("code", { class: "command", title: clip(target.command, 2000) }, clip(target.command, 400)) : null);
  }

  function showFigures(target) {
    const { fds, limit, series } = target;
    const ratio = isKnown(fds) && limit ? fds / limit : null;
    const dead = target.dead_pipes && (target.dead_pipes.read ?? 0) + (target.dead_pipes.write ?? 0);
    const restarts = Object.entries(target.restarts ?? {});
    const guard = target.guard;
    const isIll = ILL.includes(guard?.health);
    morph(at("figures"),
      figure("Open descriptors", [counted(fds), make("span", { class: "dim" }, ` / ${isKnown(limit) ? count(limit) : "limit unknown"}`)],
        ratio === null ? null : `${percent(ratio)} used, ${count(Math.max(0, limit - fds))} left${target.hard_limit && target.hard_limit !== limit ? `; hard limit ${count(target.hard_limit)}` : ""}`,
        { isWide: true, tone: toneOf(ratio), meter: ratio === null ? null : meter(ratio, "Descriptors in use") }),
      etaFigure(target),
      growthFigure(target),
      figure("Dead pipe ends", counted(dead), dead ? `${count(target.dead_pipes.read ?? 0)} read, ${count(target.dead_pipes.write ?? 0)} write` : isKnown(dead) ? "none" : "not known",
        { tone: dead > 0 ? "bad" : "none", help: "Ends whose other end is closed in every process" }),
      figure("Memory", bytes(series?.rss_bytes?.at(-1)), "resident", { series: series?.rss_bytes }),
      figure("Threads", counted(series?.threads?.at(-1)), null, { series: series?.threads }),
      figure("Children", counted(series?.children?.at(-1)), null, { series: series?.children }),
      isKnown(target.close_wait) && target.close_wait > 0 ? figure("CLOSE_WAIT", count(target.close_wait), "sockets that the peer closed", { tone: "warn" }) : null,
      restarts.length ? figure("Restarts", count(restarts.reduce((sum, [, number]) => sum + number, 0)), restarts.map(([why, number]) => `${why} ${count(number)}`).join(", "), { tone: target.restart_loop ? "bad" : "none" }) : null,
      guard ? figure("Guard", guard.health ?? UNKNOWN, isKnown(guard.last_success) ? ["last success ", moment(guard.last_success)] : "no success yet", { tone: isIll ? "bad" : guard.health === "draining" ? "warn" : "none" }) : null);
  }

  function etaFigure(target) {
    const [soonest, latest] = target.eta_s ?? [null, null];
    const name = "Limit reached in";
    if (target.verdict === "EXHAUSTED") return figure("Limit", "reached", target.alive === false ? "it has ended" : "it can open nothing more", { tone: "bad", isWide: true });
    if (!isKnown(soonest)) {
      const why = isKnown(target.growth_per_hour) ? "its baseline does not rise" : "the trend needs a longer watch";
      return figure(name, UNKNOWN, why, { isWide: true });
    }
    const words = isKnown(latest) && span(latest) !== span(soonest) ? `${span(soonest)} – ${span(latest)}` : isKnown(latest) ? span(soonest) : `≥ ${span(soonest)}`;
    const when = isKnown(latest) ? ["between ", moment(state.now + soonest), " and ", moment(state.now + latest)] : [moment(state.now + soonest), " at the earliest"];
    return figure(name, words, when, { isWide: true, tone: soonest < 4 * HOUR ? "bad" : soonest < DAY ? "warn" : "none" });
  }

  function growthFigure(target) {
    if (!isKnown(target.growth_per_hour)) return figure("Growth", UNKNOWN, "not known yet");
    const [middle, low, high] = target.growth_per_hour;
    const isSure = low > 0;
    return figure("Growth", isSure || (middle > 0 && target.verdict === "GROWING") ? rate(middle) : "none", `${rate(low).replace(rate(high).slice(-2), "")} to ${rate(high)} (95\u202f%)`, { tone: isSure ? "warn" : "none", help: "Slope of the baseline, the lowest counts over time" });
  }

  function showWhy(target) {
    const list = (title, lines, words = sentence) => (lines.length ? [make("h3", {}, title), make("ul", {}, ...lines.map((line) => make("li", {}, words(line))))] : []);
    const confidence = target.confidence ? [target.confidence] : [];
    const evidence = [...(target.evidence ?? []).filter((line) => line !== target.sentence), ...confidence];
    const left = [...list("Evidence", evidence), ...list("Likely cause", target.cause ? [target.cause] : []), ...list("Held by", target.held_by ?? [], String)];
    const loop = target.restart_loop ? ["read why it ends, in the log of what starts it again and in the events below"] : [];
    const advice = list("What to do", [...loop, ...(target.advice ?? [])]);
    morph(at("why"), left.length ? make("div", { "data-key": "evidence" }, ...left) : null, advice.length ? make("div", { class: "advice", "data-key": "advice" }, ...advice) : null);
  }

  // ---- charts over time

  const RANGES = { "1 h": HOUR, "6 h": 6 * HOUR, "2 d": 2 * DAY, "30 d": 30 * DAY, all: Infinity };
  const SCALES = ["to the limit", "to the data"];
  let range = null; // null: not chosen by the reader
  let scale = null;
  let zoom = null; // [from, to] that the reader has dragged, in seconds

  /** The range that shows the trend, unless the reader has chosen one. */
  function rangeOf(target) {
    if (range) return range;
    const since = state.now - (target.trend?.t?.[0] ?? state.now);
    return Object.keys(RANGES).slice(1).find((name) => RANGES[name] >= since);
  }

  /** What the charts show, in seconds: up to the limit if it is near, else a third of the window into the future. */
  function windowOf(target) {
    if (zoom) return zoom;
    const times = [target.series?.t?.[0], target.kind_series?.t?.[0], target.baseline?.t?.[0]].filter(isKnown);
    const end = Math.max(...[target.series?.t?.at(-1), target.kind_series?.t?.at(-1)].filter(isKnown), -Infinity);
    const last = Number.isFinite(end) ? end : state.now;
    const first = Math.min(Math.max(Math.min(...times, last - 10), last - RANGES[rangeOf(target)]), last - 10);
    const width = last - first;
    const ahead = target.trend && target.trend.t[1] > last ? target.trend.t[1] - last : 0;
    return [first, last + (ahead ? (ahead <= width ? ahead * 1.06 : width / 3) : width * 0.01)];
  }

  /** The part of a series in the window, with one point more on either side so that lines reach the border. */
  function cut(times, [from, to], ...series) {
    let first = times.findIndex((t) => t >= from);
    let last = times.findLastIndex((t) => t <= to);
    first = Math.max(0, (first < 0 ? times.length : first) - 1);
    last = Math.min(times.length, last + 2);
    return [times.slice(first, last), ...series.map((one) => one.slice(first, last))];
  }

  const lineAt = ([t0, t1], [a, b], t) => (t1 > t0 ? a + ((b - a) * (t - t0)) / (t1 - t0) : b);

  function timeMarks(target, view, top) {
    const { series, baseline, trend } = target;
    const [x, highest, lowest] = cut(series.t, view, series.fds, series.low ?? series.fds);
    const marks = [{ kind: "line", name: "open", x, y: highest, low: lowest, colour: "var(--accent)", width: 1.8 }];
    if (baseline?.t?.length) {
      const [bx, by] = cut(baseline.t, view, baseline.fds);
      marks.push({ kind: "line", name: "baseline", x: bx, y: by, colour: "var(--good)", width: 2, hasDots: bx.length <= 60 });
    }
    if (trend) {
      const past = [trend.t[0], Math.min(trend.t[1], state.now)];
      const future = [past[1], trend.t[1]];
      const fit = (times) => ({ kind: "line", group: "trend", x: times, y: times.map((t) => lineAt(trend.t, trend.fit, t)), colour: "var(--warn)", width: 1.5, isSilent: true });
      marks.push({ kind: "band", name: "95 % band", x: trend.t, y: trend.high, low: trend.low, colour: PALETTE[1], isSilent: true },
        { ...fit(past), name: "trend" }, { ...fit(future), name: "forecast", isDashed: true });
    }
    const events = (state.events ?? []).filter((event) => event.target === target.target && event.t >= view[0] && event.t <= view[1]);
    if (events.length) {
      marks.push({ kind: "points", name: "events", x: events.map((event) => event.t), y: events.map(() => 0.02 * top), colour: "var(--text)", texts: events.map((event) => `${event.kind}: ${clip(event.text, 70)}`) });
    }
    return marks;
  }

  const clip = (text, max) => (text.length > max ? `${text.slice(0, max - 1)}…` : text);

  const levels = (target) => [[target.limit, "limit", "bad"], [target.guard?.hard_cap, "Guard hard cap", "warn"], [target.guard?.soft_cap, "Guard soft cap", "warn"]]
    .filter(([value]) => value > 0).map(([value, name, tone]) => ({ value, name: `${name} ${count(value)}`, colour: `var(--${tone})`, isStrong: name === "limit" }));

  /** Whether the chart reaches up to the limit: where the count or its trend comes near it, or the reader asks for it. */
  function isToLimit(target, max) {
    if (!target.limit) return false;
    if (scale) return scale === SCALES[0];
    return max >= target.limit / 4 || (target.trend?.fit?.[1] ?? 0) >= 0.9 * target.limit;
  }

  /** A zoom in one of the two charts over time is a zoom in both. */
  const overTime = (view) => ({
    x: { range: view, isTime: true, format: (t) => `${day(t)} ${clock(t)}` },
    onZoom: (found) => { zoom = found; drawCharts(); },
  });

  function drawTime(target, view) {
    const hasData = Boolean(target.series?.t?.length);
    empty("time", !hasData, `No sample yet: the next one comes within ${span(state.every_s ?? 5)}.`);
    at("trend").textContent = trendWords(target);
    at("scale").hidden = !target.limit;
    at("unzoom").hidden = !zoom;
    press("range", zoom ? null : rangeOf(target));
    if (!hasData) return;
    const max = Math.max(1, ...cut(target.series.t, view, target.series.fds)[1].filter(isKnown));
    const toLimit = isToLimit(target, max);
    press("scale", SCALES[toLimit ? 0 : 1]);
    const trendTop = target.trend ? lineAt(target.trend.t, target.trend.high, Math.min(view[1], target.trend.t[1])) : 0;
    const top = 1.12 * (toLimit ? Math.max(target.limit, max) : Math.max(max, Math.min(trendTop, 2 * max)));
    chart.show(at("time-chart"), {
      ...overTime(view), marks: timeMarks(target, view, top), levels: levels(target), top,
      label: `Open descriptors of ${target.target} over time: ${counted(target.fds)} of ${counted(target.limit)}. ${trendWords(target)}`,
    });
  }

  function trendWords(target) {
    if (!target.trend) return isKnown(target.growth_per_hour) ? "No rising trend." : "No trend yet: it needs a longer watch.";
    const [soonest, latest] = target.eta_s ?? [];
    if (!isKnown(soonest)) return "The baseline rises.";
    if (soonest <= 0) return "The limit is reached.";
    if (target.alive === false) return "";
    return `At this rate the limit is reached ${isKnown(latest) ? `between ${near(state.now + soonest)} and ${near(state.now + latest)}` : `at ${near(state.now + soonest)} at the earliest`}.`;
  }

  const KINDS = ["pipe", "socket", "file", "deleted", "shm", "memfd", "eventfd", "eventpoll", "device", "timerfd", "inotify", "pidfd", "other"];

  /** Keeps the colour of a kind the same in every target, and over time. */
  function kindColour(kind) {
    const place = KINDS.indexOf(kind);
    if (place >= 0) return PALETTE[place % PALETTE.length];
    let hash = 0;
    for (let i = 0; i < kind.length; i += 1) hash = (hash * 31 + kind.charCodeAt(i)) % 9973;
    return PALETTE[hash % PALETTE.length];
  }

  function drawKinds(target, view) {
    const kinds = Object.entries(target.kind_series?.kinds ?? {}).sort((a, b) => (b[1].at(-1) ?? 0) - (a[1].at(-1) ?? 0));
    const now = { ...Object.fromEntries(kinds.map(([kind]) => [kind, 0])), ...target.kinds };
    morph(at("kinds-now"), ...Object.entries(now).sort((a, b) => b[1] - a[1]).map(([kind, number]) =>
      make("span", { class: "kind", title: kind }, make("i", { style: `background:${kindColour(kind)}` }), `${clip(kind, 40)} ${count(number)}`)));
    const hasData = Boolean(kinds.length && target.kind_series.t.length);
    empty("kinds", !hasData, target.kinds ? "No history of kinds yet: they are counted less often than descriptors." : "The kinds are not known: the watcher may not list this process's descriptors. Run it as the same user or as root.");
    if (!hasData) return;
    const marks = kinds.map(([kind, series]) => {
      const [x, y] = cut(target.kind_series.t, view, series);
      return { kind: "area", name: clip(kind, 40), x, y, colour: kindColour(kind) };
    });
    chart.show(at("kinds-chart"), { ...overTime(view), marks, hasLegend: false, label: `Open descriptors of ${target.target} by kind over time, stacked` });
  }

  // ---- jobs

  /** The median of the slopes between all pairs of points, and the line of that slope through the median point. */
  function fitted(points) {
    const some = every(points, 200);
    const slopes = [];
    some.forEach(([x, y], number) => {
      for (const [otherX, otherY] of some.slice(number + 1)) if (otherX !== x) slopes.push((otherY - y) / (otherX - x));
    });
    if (!slopes.length) return null;
    const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
    const slope = median(slopes);
    return { slope, start: median(some.map(([x, y]) => y - slope * x)) };
  }

  const WARM_UP = 10; // the first jobs open what all the others use

  function drawJobs(target) {
    const guard = target.guard;
    const jobs = (guard?.jobs ?? []).filter(([number, fds]) => isKnown(number) && isKnown(fds));
    const line = fitted(jobs.length > 2 * WARM_UP ? jobs.filter(([number]) => number > WARM_UP) : jobs);
    const perJob = line && (Math.abs(line.slope) < 0.005 ? "0" : `${line.slope > 0 ? "+" : "−"}${Math.abs(line.slope).toPrecision(2)}`);
    at("jobs-hint").textContent = line ? `${perJob} descriptors a job, over ${plural(jobs.length, "job")}` : "";
    const facts = !guard ? [] : [["Health", guard.health, ILL.includes(guard.health)], ["State", guard.state], ["Done", counted(guard.jobs_done)],
      ["Failed", counted(guard.jobs_failed)], ["Failures in a row", guard.fails_in_row ? count(guard.fails_in_row) : "", true],
      ["Last success", isKnown(guard.last_success) ? moment(guard.last_success) : ""], ["Current job", guard.job], ["Drains because", guard.reason], ["Last error", guard.error, true]];
    morph(at("jobs-facts"), ...facts.filter(([, value]) => value).map(([name, value, isBad]) =>
      make("div", { class: isBad ? "bad" : null, "data-key": name }, make("dt", {}, name), make("dd", {}, typeof value === "string" ? clip(value, 200) : value))),
    guard?.sentence ? make("div", { "data-key": "says" }, make("dt", {}, "Guard says"), make("dd", {}, sentence(guard.sentence))) : null);
    at("jobs-facts").hidden = !guard;
    empty("jobs", !jobs.length, guard ? "No job has ended yet: with guard.job(…) around each one, this shows what it leaves open." : "No Guard in this process: hold.Guard shows jobs here, and what each one leaves open.");
    if (!jobs.length) return;
    const x = jobs.map(([number]) => number);
    const ends = [Math.min(...x), Math.max(...x)];
    const marks = [{ kind: "points", name: "after the job", x, y: jobs.map(([, fds]) => fds), colour: PALETTE[0] }];
    if (line) marks.push({ kind: "line", name: `${perJob} a job`, group: "trend", x: ends, y: ends.map((one) => line.start + line.slope * one), colour: "var(--warn)", width: 2, isSilent: true });
    const margin = Math.max(1, 0.02 * (ends[1] - ends[0]));
    chart.show(at("jobs-chart"), {
      marks, levels: levels(target), top: 1.12 * Math.max(1, ...jobs.map(([, fds]) => fds)),
      x: { range: [ends[0] - margin, ends[1] + margin], isWhole: true, title: "job number", format: (number) => `job ${count(number)}` },
      label: `Descriptors of ${target.target} after each job: ${perJob ?? "unknown"} a job`,
    });
  }

  // ---- drawing

  function empty(name, isEmpty, text) {
    at(`${name}-chart`).hidden = isEmpty;
    at(`${name}-empty`).hidden = !isEmpty;
    at(`${name}-empty`).textContent = text;
  }

  function press(id, name) {
    for (const button of at(id).children) button.setAttribute("aria-pressed", String(button.textContent.toLowerCase() === name));
  }

  function drawCharts() {
    const target = state && shownTarget();
    if (!target) return;
    const view = windowOf(target);
    drawTime(target, view);
    drawKinds(target, view);
    drawJobs(target);
  }

  function startCharts() {
    choice(at("range"), Object.keys(RANGES), null, (name) => { range = name; zoom = null; drawCharts(); });
    choice(at("scale"), SCALES, null, (name) => { scale = name; drawCharts(); });
    at("unzoom").addEventListener("click", () => { zoom = null; drawCharts(); });
  }

  // ---- headroom

  function showHeadroom(target) {
    const bars = (target.headroom ?? []).map((limit) => {
      const amount = /memory|bytes/.test(limit.name) ? bytes : counted;
      const ratio = limit.ratio ?? (isKnown(limit.used) && limit.limit ? limit.used / limit.limit : null);
      const isUnknown = !isKnown(limit.used);
      const words = isUnknown ? "not known" : isKnown(limit.limit) ? [`${amount(limit.used)} of ${amount(limit.limit)} · `, make("b", {}, `${percent(ratio ?? 0)}${ratio >= 0.85 ? " tight" : ""}`)] : `${amount(limit.used)}, no limit`;
      return make("div", { class: isUnknown ? "limit unknown" : "limit", "data-tone": toneOf(ratio), "data-key": limit.name ?? limit.label },
        make("span", {}, sentence(limit.label ?? limit.name)), make("span", { class: "used" }, ...[words].flat()), meter(ratio, limit.label));
    });
    morph(at("bars"), ...(bars.length ? bars : [make("p", { class: "empty" }, target.alive === false ? "The process has ended: its limits are gone with it." : "The limits of this process are not known. Run the watcher as the same user or as root.")]));
  }

  // ---- tables

  const tables = {};

  function startTables() {
    tables.pipes = showTable(at("pipes-table"), [
      { name: "Process", value: (row) => row.pid, cell: (row) => String(row.pid ?? UNKNOWN) },
      { name: "Descriptor", isNumber: true, value: (row) => row.fd, cell: (row) => String(row.fd ?? UNKNOWN) },
      { name: "End", value: (row) => row.access, cell: (row) => ({ r: "read", w: "write" })[row.access] ?? row.access ?? UNKNOWN },
      { name: "State", value: (row) => row.state, cell: (row) => ({ dead: "other end closed", self: "both ends only here" })[row.state] ?? row.state ?? UNKNOWN },
      { name: "Inode", isNumber: true, isOptional: true, value: (row) => row.inode, cell: (row) => String(row.inode ?? UNKNOWN) },
    ], [], { noun: "end", keyOf: (row) => `${row.pid} ${row.fd} ${row.inode}` });

    tables.tree = showTable(at("tree-table"), [
      {
        name: "Process", class: "short", value: (row) => row.pid,
        cell: (row, isSorted) => make("span", { class: "code" }, row.depth && !isSorted ? make("span", { class: "branch" }, `${"  ".repeat(Math.min(row.depth - 1, 10))}└ `) : null, String(row.pid ?? UNKNOWN)),
      },
      { name: "Verdict", value: (row) => styleOf(row).rank, cell: (row) => make("span", { "data-tone": styleOf(row).tone }, chip(styleOf(row))) },
      {
        name: "Open", isNumber: true, value: (row) => row.fds, help: "of its limit",
        cell: (row) => make("div", {}, counted(row.fds), make("span", { class: "dim" }, ` / ${counted(row.limit)}`),
          isKnown(row.fds) && row.limit ? meter(row.fds / row.limit, "Descriptors in use") : null),
      },
      { name: "Dead pipes", isNumber: true, value: (row) => row.dead_pipes, cell: (row) => counted(row.dead_pipes) },
      { name: "Threads", isNumber: true, isOptional: true, value: (row) => row.threads, cell: (row) => counted(row.threads) },
      { name: "Memory", isNumber: true, value: (row) => row.rss_bytes, cell: (row) => bytes(row.rss_bytes) },
      {
        name: "Kinds", isOptional: true, value: (row) => Object.keys(row.kinds ?? {})[0], help: "of open descriptors, the most frequent first",
        cell: (row) => make("span", {}, ...Object.entries(row.kinds ?? {}).sort((a, b) => b[1] - a[1]).slice(0, 4).map(([kind, number]) => make("span", { class: "kind" }, `${clip(kind, 24)} ${count(number)}`))),
      },
      { name: "Command", class: "wide", value: (row) => row.command, cell: (row) => make("code", { title: row.command }, clip(row.command ?? UNKNOWN, 160)) },
    ], [], { noun: "process", searchable: true, textOf: (row) => `${row.pid} ${row.verdict} ${row.command}`, keyOf: (row) => String(row.pid) });

    tables.events = showTable(at("events-table"), [
      { name: "Time", class: "when", value: (row) => row.t, cell: (row) => moment(row.t) },
      { name: "Target", class: "name", isOptional: true, value: (row) => row.target, cell: (row) => make("span", { title: row.target }, row.target ?? "") },
      { name: "Kind", value: (row) => row.kind, cell: (row) => make("span", { class: "kind" }, row.kind ?? "") },
      { name: "What happened", class: "wide", value: (row) => row.text, cell: (row) => row.text ?? "" },
    ], [], { noun: "event", searchable: true, textOf: (row) => `${row.target} ${row.kind} ${row.text}`, keyOf: (row) => `${row.t} ${row.target} ${row.kind} ${row.text}` });
  }

  /** How deep each process is below the first; a parent comes before its children. */
  function withDepths(rows) {
    const depths = new Map();
    return rows.map((row) => {
      const depth = depths.has(row.ppid) ? depths.get(row.ppid) + 1 : 0;
      depths.set(row.pid, depth);
      return { ...row, depth };
    });
  }

  function showTables(target) {
    const dead = target.dead ?? [];
    const ends = target.dead_pipes;
    at("pipes-hint").textContent = ends ? [plural(ends.read ?? 0, "read end") + " without a writer", plural(ends.write ?? 0, "write end") + " without a reader",
      target.self_pairs ? `${plural(target.self_pairs, "pipe")} with both ends only here` : ""].filter(Boolean).join(", ") + (dead.length ? `. The first ${dead.length}:` : ".") : "";
    tables.pipes(dead, ends ? "No dead pipe: the other end of every pipe is open." : target.alive === false ? "The process has ended." : "Not known: the watcher may not list this process's descriptors. Run it as the same user or as root.");
    tables.tree(withDepths(target.tree ?? []), target.alive === false ? "The process has ended." : "No process of this tree can be read.");
  }

  // ---- the whole page

  function show() {
    const targets = [...state.targets].sort(byUrgency);
    if (!targets.some((target) => keyOf(target) === selected)) {
      selected = targets.length ? keyOf(targets[0]) : null;
      zoom = null;
    }
    showHeadline(targets);
    showTabs(targets);
    const target = shownTarget();
    at("target").hidden = !target;
    for (const link of at("nav").children) link.hidden = !target && Boolean(at("target").querySelector(link.hash));
    tables.events([...(state.events ?? [])].reverse(), "No event yet: starts, ends, restarts and changes of the verdict are listed here.");
    if (!target) return;
    showAbout(target);
    showFigures(target);
    showWhy(target);
    showHeadroom(target);
    showTables(target);
    drawCharts();
  }

  function startNav() {
    for (const section of document.querySelectorAll("section[data-name]")) {
      at("nav").append(make("a", { href: `#${section.id}` }, section.dataset.name));
    }
  }

  // ---- live

  let answered = null; // when the last document came, by this page's clock
  let timer = null;
  let asking = null;

  function showStatus(problem) {
    at("banner").hidden = !problem;
    if (at("banner").textContent !== (problem ?? "")) at("banner").textContent = problem ?? "";
    document.querySelector("main").classList.toggle("stale", Boolean(problem) && Boolean(state));
    at("status").className = `hint ${problem ? "stale" : state?.live ? "live" : ""}`;
    morph(at("status"), !state ? "" : make("span", {}, make("span", { class: "word" }, state.live ? "updated " : "recorded until "), moment(state.now)));
  }

  function problemOf(error) {
    if (error.status === 401 || error.status === 403) return "The watcher refuses this page: open the address with the token that it has printed.";
    const since = answered ? `since ${clock(answered)}` : "yet";
    if (error.status) return `The watcher answers with an error (${error.status}), and no data ${since}.`;
    return `No answer ${since}; the watcher may have ended. This page tries again every ${span(everySeconds())}.`;
  }

  const everySeconds = () => Math.max(1, state?.every_s ?? 2);

  async function ask() {
    clearTimeout(timer);
    asking?.abort();
    const mine = new AbortController();
    asking = mine;
    const patience = setTimeout(() => mine.abort(), 1000 * Math.max(10, 3 * everySeconds()));
    try {
      const answer = await fetch("api/state", { signal: mine.signal, cache: "no-store" });
      if (!answer.ok) throw Object.assign(new Error(answer.statusText), { status: answer.status });
      state = visible(await answer.json());
      answered = Date.now() / 1000;
      show();
      showStatus(null);
      document.documentElement.dataset.shown = state.now; // for tests, as `ready` is
      document.documentElement.dataset.ready = "yes";
    } catch (error) {
      if (asking !== mine) return; // a newer question was asked
      showStatus(problemOf(error));
      if (!(error instanceof TypeError || error.name === "AbortError" || error.status)) throw error;
    } finally {
      clearTimeout(patience);
      if (asking === mine && !document.hidden) timer = setTimeout(ask, 1000 * everySeconds());
    }
  }

  function startAsking() {
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) clearTimeout(timer);
      else ask();
    });
    ask();
  }

  startNav();
  startTabs();
  startTables();
  startCharts();
  startTheme(at("theme"), () => { if (state) show(); });
  state = visible(JSON.parse(at("data").textContent));
  if (state) {
    show();
    showStatus(null);
    document.documentElement.dataset.ready = "yes";
  } else startAsking();
})();
