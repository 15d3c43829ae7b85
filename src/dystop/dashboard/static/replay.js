// Replay: a slider chooses the round that the map shows; a round is asked for when it is needed.

import { at, number } from "./common.js";

const TIMEOUT_MS = 20000;

/** The round in the address, as in #round=3. */
const asked = () => Number(/^#round=(\d{1,9})$/.exec(location.hash)?.[1]) || null;

export class Replay {
  /** `address`: of the rounds of the run, without the number. */
  constructor(map, address) {
    Object.assign(this, { map, address, busy: false, last: null });
    this.slider = at("round");
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
    this.slider.addEventListener("change", () => this.keep());
    window.addEventListener("hashchange", () => this.open());
  }

  /** Offer the rounds up to `last`; null hides the slider. `end` is the map of the last round. */
  offer(last, end) {
    const hadSlider = this.last !== null;
    Object.assign(this, { last, end });
    at("replay").hidden = last === null;
    if (last === null) return;
    this.slider.max = last;
    if (!hadSlider) this.open();
    else this.choose(last);
  }

  open() {
    if (this.last !== null) this.choose(Math.max(1, Math.min(this.last, asked() ?? this.last)));
  }

  choose(round) {
    this.round = round;
    this.slider.value = round;
    this.tell(`round ${number(round)} of ${number(this.last)}`);
    this.load();
  }

  /** Keep the round in the address, once the slider rests: browsers limit how often. */
  keep() {
    history.replaceState(null, "", this.round === this.last ? location.pathname : `#round=${this.round}`);
  }

  tell(text) {
    at("shown").textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
  }

  /** Show the chosen round; while one is on its way, the next waits, and those between are left out. */
  async load() {
    if (this.busy) return;
    this.busy = true;
    try {
      let shown = null;
      while (shown !== this.round) {
        shown = this.round;
        const found = shown === this.last ? this.end : await this.request(shown);
        if (found) this.map.show(found, shown === this.last ? undefined : `round ${number(shown)}`);
        else if (shown === this.round) this.tell(`round ${number(shown)} cannot be read`);
      }
    } finally {
      this.busy = false;
    }
  }

  async request(round) {
    const options = { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(TIMEOUT_MS) };
    const reply = await fetch(`${this.address}${round}`, options).catch(() => null);
    return reply?.ok ? reply.json().catch(() => null) : null;
  }
}
