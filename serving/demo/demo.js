// The page of `offpath demo`. Texts from the server are only ever set as text, never as markup.
"use strict";

const PREDICT = "/invocations"; // the only model
const REQUESTS = 200;
const CLIENTS = 4;
const REDRAW_EVERY = 10;
const OUTSIDE = "outside";
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
let image = null;

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function formatMs(ms) {
  return `${ms.toFixed(ms < 10 ? 2 : ms < 100 ? 1 : 0)} ms`;
}

// "decode;dur=11.2, total;dur=15" -> [["decode", 11.2], ["total", 15]]
function parseServerTiming(header) {
  const pattern = /([\w-]+);dur=([\d.]+)/g;
  return [...(header || "").matchAll(pattern)].map(([, name, ms]) => [name, Number(ms)]);
}

async function predict(body) {
  const start = performance.now();
  const reply = await fetch(PREDICT, {
    method: "POST", body, headers: { "Content-Type": "application/octet-stream" },
  });
  const text = await reply.text();
  const ms = performance.now() - start;
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    answer = { type: "BadAnswer", message: text.slice(0, 200) };
  }
  return { status: reply.status, answer, ms, timing: reply.headers.get("server-timing") };
}

function drawBar(list, name, text, offset, share, colour) {
  const row = make("li");
  const track = make("span", undefined, "track");
  const bar = make("span", undefined, "bar");
  bar.style.marginLeft = `${100 * offset}%`;
  bar.style.width = `${100 * share}%`;
  if (colour) bar.style.background = `var(--${colour}, var(--other))`;
  track.append(bar);
  row.append(make("span", name), track, make("span", text));
  list.append(row);
}

function drawLabels(labels) {
  if (!Object.values(labels).every(Number.isFinite)) {
    byId("labels").append(make("li", JSON.stringify(labels))); // of a handler of the user's own
    return;
  }
  for (const [label, probability] of Object.entries(labels)) {
    drawBar(byId("labels"), label, `${(100 * probability).toFixed(1)} %`, 0, probability);
  }
}

function drawStages(timing, ms) {
  const times = parseServerTiming(timing);
  const total = times.find(([name]) => name === "total")?.[1] ?? 0;
  const rows = times.filter(([name, value]) => name !== "total" && value > 0);
  const other = total - rows.reduce((sum, [, value]) => sum + value, 0);
  rows.push(["other", Math.max(0, other)], [OUTSIDE, Math.max(0, ms - total)]);
  const whole = Math.max(ms, total);
  let at = 0;
  for (const [name, value] of rows) {
    drawBar(byId("stages"), name, formatMs(value), at / whole, value / whole, name);
    at += value;
  }
}

async function classify(file) {
  for (const id of ["labels", "stages", "chart", "figures"]) byId(id).replaceChildren();
  byId("progress").textContent = "";
  byId("time").hidden = byId("load").hidden = true;
  URL.revokeObjectURL(byId("preview").src);
  byId("preview").src = URL.createObjectURL(file);
  byId("preview").hidden = false;
  byId("hint").textContent = `${file.name || "image"}, ${Math.ceil(file.size / 1000)} kB`;
  byId("status").className = "";
  byId("status").textContent = "Waiting for the answer ...";
  try {
    const { status, answer, ms, timing } = await predict(file);
    if (status !== 200) throw new Error(`${status} ${answer.type}: ${answer.message}`);
    byId("status").textContent = `Answered in ${formatMs(ms)}.`;
    drawLabels(answer);
    drawStages(timing, ms);
    image = file;
    byId("time").hidden = byId("load").hidden = false;
  } catch (error) {
    byId("status").className = "bad";
    byId("status").textContent = error instanceof TypeError ? "The server does not answer." : error.message;
  }
}

async function sendMany() {
  const seen = [];
  let sent = 0;
  const button = byId("send");
  const start = performance.now();
  const draw = () => {
    byId("progress").textContent = `${seen.length} of ${REQUESTS}`;
    drawLatency(seen, (performance.now() - start) / 1000);
  };
  const work = async () => {
    while (sent < REQUESTS) {
      sent += 1;
      const { status, ms } = await predict(image).catch(() => ({ status: 0, ms: 0 }));
      seen.push({ ms, isOk: status === 200 });
      if (seen.length % REDRAW_EVERY === 0) draw();
    }
  };
  button.disabled = byId("file").disabled = true;
  await Promise.all(Array.from({ length: CLIENTS }, work));
  button.disabled = byId("file").disabled = false;
}

function percentile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

function shape(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Returns 1, 2 or 5 times a power of ten, so that the axis has at most five lines.
function chooseStep(most) {
  const power = 10 ** Math.floor(Math.log10(most / 5));
  return power * [1, 2, 5, 10].find((factor) => most / (factor * power) <= 5);
}

function drawLatency(seen, seconds) {
  const width = Math.max(280, byId("chart").clientWidth);
  const height = 220, left = 60, bottom = 24, top = 8;
  const most = Math.max(1, ...seen.map(({ ms }) => ms));
  const y = (ms) => top + (height - top - bottom) * (1 - ms / most);
  const chart = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "Latency of each request in milliseconds, in the order of the answers" });
  const step = chooseStep(most);
  for (let line = 0; line * step <= most; line += 1) {
    const ms = Number((line * step).toPrecision(3));
    chart.append(shape("line", { x1: left, x2: width, y1: y(ms), y2: y(ms) }));
    chart.append(shape("text", { x: left - 6, y: y(ms) + 4, "text-anchor": "end" }, `${ms} ms`));
  }
  seen.forEach(({ ms, isOk }, idx) => {
    const x = left + 4 + (idx / REQUESTS) * (width - left - 8);
    chart.append(shape("circle", { cx: x, cy: y(ms), r: 2.5, class: isOk ? "" : "failed" }));
  });
  chart.append(shape("text", { x: left, y: height - 6 }, "answers, in their order"));
  byId("chart").replaceChildren(chart);
  const sorted = seen.filter(({ isOk }) => isOk).map(({ ms }) => ms).sort((a, b) => a - b);
  const figures = { failed: String(seen.length - sorted.length) };
  if (sorted.length) {
    figures["requests per second"] = (sorted.length / seconds).toFixed(0);
    for (const share of [50, 95, 99]) figures[`p${share}`] = formatMs(percentile(sorted, share / 100));
  }
  byId("figures").replaceChildren(...Object.entries(figures).map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", name), make("dd", value));
    return pair;
  }));
}

function take(files) {
  if (files.length && !byId("file").disabled) classify(files[0]);
}

for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    byId("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") take(event.dataTransfer.files);
  });
}
document.addEventListener("paste", (event) => take(event.clipboardData.files));
byId("file").addEventListener("change", (event) => take(event.target.files));
byId("send").addEventListener("click", sendMany);
for (const button of document.querySelectorAll("#samples button")) {
  button.addEventListener("click", async () => {
    const source = button.querySelector("img").src;
    const reply = await fetch(source);
    take([new File([await reply.blob()], source.split("/").pop())]);
  });
}
