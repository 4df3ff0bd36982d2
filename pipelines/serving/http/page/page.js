"use strict";
// Sends an image to the server, and shows its classes and the attention of each layer.

const MOST_COLORS = 256;
const element = (id) => document.getElementById(id);
let attention = null;
let latest = 0;

// Dark blue over red to yellow, as the maps of the reports.
const COLORS = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];

function color(value) {
  const place = Math.min(Math.max(value, 0), 1) * (COLORS.length - 1);
  const index = Math.min(Math.floor(place), COLORS.length - 2);
  const part = place - index;
  return COLORS[index].map((low, channel) => low + part * (COLORS[index + 1][channel] - low));
}

function say(text, isWrong = false) {
  element("status").textContent = text;
  element("status").classList.toggle("wrong", isWrong);
}

// `content`: a file, or the promise of one.
async function classify(content, name) {
  const number = ++latest;
  const begin = performance.now();
  say(`${name}: waiting for the answer`);
  try {
    const response = await fetch("/explain", { method: "POST", body: await content });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    const milliseconds = performance.now() - begin;
    if (answer.seen) await picture(answer.seen);
    if (number === latest) show(answer, name, milliseconds);
  } catch (error) {
    if (number !== latest) return;
    element("result").hidden = true;
    const reason = error instanceof TypeError
      ? "The server does not answer, or the file is too large for it." : error.message;
    say(`${name}: ${reason}`, true);
  }
}

// Waits until the browser can show a picture.
function picture(source) {
  const image = new Image();
  image.src = source;
  return image.decode();
}

function show(answer, name, milliseconds) {
  const best = (answer.top || [])[0];
  say(best ? `${name}: ${best.label}, ${percent(best.probability)}` : name);
  element("title").textContent = name;
  const bars = (answer.top || []).map(({ label, probability }) => bar(label, probability));
  element("top").replaceChildren(...bars);
  if (!answer.top) element("top").textContent = "The model has no head, so it names no classes.";
  element("time").textContent =
    `${answer.width} x ${answer.height} pixels. Decoding and classes ${answer.milliseconds.toFixed(1)} ms, ` +
    `with the attention map and the way to this page ${milliseconds.toFixed(0)} ms.`;
  const image = element("seen");
  image.parentElement.hidden = !answer.seen;
  attention = answer.attention || null;
  element("layers").hidden = element("map").hidden = !attention;
  element("caption").textContent = caption(answer);
  element("result").hidden = false;
  if (attention) {
    element("layer").max = attention.layers.length;
    element("layer").value = attention.layers.length;
  }
  image.onload = () => {
    image.classList.toggle("small", image.naturalWidth < 128);
    image.parentElement.style.maxWidth = `calc(60vh * ${image.naturalWidth / image.naturalHeight})`;
    if (attention) draw();
    element("result").scrollIntoView({ block: "nearest" });
  };
  if (answer.seen) image.src = answer.seen;
}

function percent(probability) {
  return `${(100 * probability).toFixed(1)} %`;
}

function caption(answer) {
  if (answer.attention) {
    return "How much each patch is attended to, as the mean over the heads; yellow is most in this layer.";
  }
  if (answer.seen) return "The part of the image that the model sees. It has no attention to show.";
  return "The export does not say what the model sees: an earlier version wrote it. Export it again.";
}

function bar(label, probability) {
  const row = document.createElement("div");
  row.className = "bar";
  const name = document.createElement("span");
  name.textContent = name.title = label;
  const track = document.createElement("i");
  const filled = document.createElement("u");
  filled.style.width = `${100 * probability}%`;
  track.append(filled);
  const share = document.createElement("em");
  share.textContent = percent(probability);
  row.append(name, track, share);
  return row;
}

function draw() {
  const layer = Number(element("layer").value);
  element("layer-name").textContent = `${layer} of ${attention.layers.length}`;
  const values = attention.layers[layer - 1];
  const low = Math.min(...values);
  const range = Math.max(...values) - low || 1;
  const small = document.createElement("canvas");
  small.width = attention.columns;
  small.height = attention.rows;
  const context = small.getContext("2d");
  const pixels = context.createImageData(small.width, small.height);
  values.forEach((value, index) => {
    pixels.data.set([...color((value - low) / range), MOST_COLORS - 1], 4 * index);
  });
  context.putImageData(pixels, 0, 0);
  const canvas = element("map");
  canvas.width = canvas.clientWidth;
  canvas.height = canvas.clientHeight;
  canvas.style.opacity = element("strength").value;
  canvas.getContext("2d").drawImage(small, 0, 0, canvas.width, canvas.height);
}

element("file").addEventListener("change", (event) => {
  const [file] = event.target.files;
  if (file) classify(file, file.name);
  event.target.value = ""; // The same file may be chosen again.
});
for (const type of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(type, (event) => {
    event.preventDefault();
    element("drop").classList.toggle("over", type === "dragover");
    const file = type === "drop" && event.dataTransfer.files[0];
    if (file) classify(file, file.name);
  });
}
for (const button of document.querySelectorAll(".sample")) {
  button.addEventListener("click", () => {
    classify(fetch(button.dataset.path).then((file) => file.blob()), button.textContent);
  });
}
element("layer").addEventListener("input", draw);
element("strength").addEventListener("input", draw);
window.addEventListener("resize", () => attention && draw());
