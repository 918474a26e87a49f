// What a person would notice, as functions that a test calls by name with arguments; each returns what is wrong.
const LARGE = 24, LARGE_BOLD = 18.66;

function described(element) {
  const name = element.tagName.toLowerCase();
  const text = (element.textContent || "").trim().replace(/\s+/g, " ").slice(0, 40);
  return `${name}.${element.getAttribute("class") || ""} "${text}"`;
}

function textNodes() {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (walker.currentNode.data.trim() && !parent.closest("style, title, .skip") && parent.checkVisibility()) {
      found.push(walker.currentNode);
    }
  }
  return found;
}

function boxes(node) {
  const range = document.createRange();
  range.selectNodeContents(node);
  return [...range.getClientRects()];
}

// Text that the window or an element cuts off.
function cutOff() {
  const wrong = [];
  for (const node of textNodes()) {
    const parent = node.parentElement;
    if (parent.closest(".scroll")) continue;
    if (boxes(node).some((box) => box.left < -1 || box.right > document.documentElement.clientWidth + 1)) {
      wrong.push(`beyond the window: ${described(parent)}`);
    }
  }
  for (const element of document.body.querySelectorAll("*")) {
    const style = getComputedStyle(element);
    const hides = style.overflowX !== "visible" && !element.closest("svg, .scroll");
    if (hides && element.scrollWidth > element.clientWidth + 1) wrong.push(`cut: ${described(element)}`);
  }
  return wrong;
}

// Text over other text.
function overlapping() {
  const placed = textNodes().filter((node) => !node.parentElement.closest(".pins, .scroll"))
    .flatMap((node) => boxes(node).map((box) => [node, box])).filter(([, box]) => box.width > 1);
  const wrong = [];
  for (let i = 0; i < placed.length; i++) {
    for (let j = i + 1; j < Math.min(placed.length, i + 60); j++) {
      const [a, b] = [placed[i][1], placed[j][1]];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (placed[i][0] !== placed[j][0] && wide > 2 && high > 7) {
        wrong.push(`${described(placed[i][0].parentElement)} and ${described(placed[j][0].parentElement)}`);
      }
    }
  }
  return wrong;
}

// Labels in pictures that do not fit their box, or that are drawn too small to read.
function labels() {
  const wrong = [];
  for (const text of document.querySelectorAll("svg text")) {
    const box = text.parentElement.querySelector("rect").getBoundingClientRect();
    const own = text.getBoundingClientRect();
    if (own.width > box.width || own.left < box.left - 1) wrong.push(`too wide: ${described(text)}`);
    const drawn = text.ownerSVGElement.getBoundingClientRect().width / text.ownerSVGElement.viewBox.baseVal.width;
    if (parseFloat(getComputedStyle(text).fontSize) * drawn < 10) wrong.push(`too small: ${described(text)}`);
  }
  return wrong;
}

function channels(colour) {
  const parts = colour.match(/[\d.]+/g).map(Number);
  return { rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
}

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function ground(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour.alpha === 1) return colour.rgb;
  }
  return [255, 255, 255];
}

// Text with less contrast than WCAG 2.2 asks for (1.4.3, level AA).
function faint() {
  const wrong = [];
  for (const node of textNodes()) {
    const element = node.parentElement;
    const style = getComputedStyle(element);
    let ink = channels(style.color).rgb, behind = ground(element);
    if (element.closest("svg")) {
      const box = element.parentElement.querySelector("rect");
      const fill = box ? getComputedStyle(box).fill : "none";
      ink = channels(style.fill).rgb;
      behind = fill === "none" ? ground(element.closest("div")) : channels(fill).rgb;
    }
    const [light, dark] = [luminance(ink), luminance(behind)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const large = size >= LARGE || (size >= LARGE_BOLD && Number(style.fontWeight) >= 700);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < (large ? 3 : 4.5)) wrong.push(`${ratio.toFixed(2)}: ${described(element)}`);
  }
  return wrong;
}

// Everything that a keyboard must reach, in the order of the page.
function reachable() {
  return [...document.querySelectorAll("a[href], summary, [tabindex='0']")].filter((element) => element.checkVisibility());
}

function focused() {
  const style = getComputedStyle(document.activeElement);
  return {
    position: reachable().indexOf(document.activeElement),
    marked: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    seen: document.activeElement.getBoundingClientRect().right > 0,
  };
}

return ({ cutOff, overlapping, labels, faint, focused, reachable: () => reachable().length })[arguments[0]]();
