// Replay: a slider chooses the round that the map shows, and a button plays one after another.
// A round is asked for when it is needed.

import { at, number } from "./common.js";

const TIMEOUT_MS = 20000;
const STEP_MS = 250;
const MOST_STEPS = 240; // a longer run is played in larger steps

/** The round in the address, as in #round=3. */
const asked = () => Number(/^#round=(\d{1,9})$/.exec(location.hash)?.[1]) || null;

export class Replay {
  /** `address`: of the rounds of the run, without the number. */
  constructor(map, address) {
    Object.assign(this, { map, address, busy: false, last: null });
    this.slider = at("round");
    this.timer = null;
    at("play").addEventListener("click", () => (this.timer === null ? this.play() : this.pause()));
    this.slider.addEventListener("input", () => {
      this.pause();
      this.choose(Number(this.slider.value));
    });
    this.slider.addEventListener("change", () => this.keep());
    window.addEventListener("hashchange", () => this.open());
  }

  /** Offer the rounds up to `last`; null hides the slider. `end` is the map of the last round. */
  offer(last, end) {
    const hadSlider = this.last !== null;
    Object.assign(this, { last, end });
    this.pause();
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

  /** Play from the chosen round, from the first one where the last is shown. */
  play() {
    if (this.round === this.last) this.choose(1);
    at("play").textContent = "Pause";
    this.timer = setInterval(() => this.advance(), STEP_MS);
  }

  /** Go on, unless the round before is still on its way. */
  advance() {
    if (this.busy || document.hidden) return;
    const step = Math.max(1, Math.round(this.last / MOST_STEPS));
    this.choose(Math.min(this.last, this.round + step));
    if (this.round === this.last) this.pause();
  }

  pause() {
    if (this.timer === null) return;
    clearInterval(this.timer);
    this.timer = null;
    at("play").textContent = "Play";
    this.keep();
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
