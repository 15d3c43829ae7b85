// What take_screenshots.py asks a page: is its text readable, and does Tab reach everything?

window.pageChecks = (() => {
  const TEXT = 4.5; // least contrast by WCAG 2 AA
  const LARGE_TEXT = 3;

  const numbers = (text) => (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const alpha = (colour) => colour[3] ?? 1;
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const over = (top, below) => [0, 1, 2].map((k) => top[k] * alpha(top) + below[k] * (1 - alpha(top)));

  /** The colour behind an element: all backgrounds up to the first that hides those below. */
  function behind(element) {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (alpha(colour) > 0) layers.push(colour);
      if (alpha(colour) === 1) break;
    }
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    return layers.reverse().reduce((below, top) => over(top, below), isDark ? [18, 18, 18] : [255, 255, 255]);
  }

  function isLarge(style) {
    const size = parseFloat(style.fontSize);
    return size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  }

  /** What is wrong with the contrast of an element's text; empty if nothing is. */
  function problem(element, text) {
    const style = getComputedStyle(element);
    const paper = behind(element);
    const [high, low] = [luminance(over(numbers(style.color), paper)), luminance(paper)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio >= (isLarge(style) ? LARGE_TEXT : TEXT) - 0.005) return "";
    return `contrast ${ratio.toFixed(2)} of ${style.color} on ${paper.map(Math.round)} ("${text.slice(0, 40)}")`;
  }

  function isShown(element) {
    const hidden = element.closest("svg, script, style, noscript, [aria-hidden=true], [disabled]");
    return !hidden && element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  }

  /** Text that cannot be read, one sentence for each pair of colours. */
  function contrastProblems() {
    const found = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const [text, element] = [walker.currentNode.textContent.trim(), walker.currentNode.parentElement];
      if (text && isShown(element)) found.add(problem(element, text));
    }
    return [...found].filter(Boolean);
  }

  /** Everything that Tab must reach, in the page as it is now: a live page replaces its elements. */
  function tabStops() {
    const all = document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']");
    const radios = new Set();
    return [...all].filter((e) => {
      if (!e.checkVisibility({ visibilityProperty: true }) || e.disabled || e.tabIndex < 0) return false;
      const box = e.getBoundingClientRect();
      if (!box.width || !box.height) return false;
      if (e.type !== "radio") return true;
      return e.checked && !radios.has(e.name) && radios.add(e.name); // a group of radios is one stop
    });
  }

  /** Which stop has the focus, and whether that can be seen; null if none has. */
  function focused() {
    const e = document.activeElement;
    if (!e || e === document.body) return null;
    const style = getComputedStyle(e);
    const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
    const text = (e.textContent || e.value || "").trim().slice(0, 30);
    return { stop: tabStops().indexOf(e), marked: outlined || style.boxShadow !== "none", name: `${e.localName} "${text}"` };
  }

  return { contrastProblems, tabStops, focused };
})();
