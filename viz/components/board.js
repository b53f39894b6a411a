// Draws the HTML that Python sends, and reports what was clicked, dragged or typed as one small object, `act`.
// Stepping stays fluid on a slow link: the cursor moves at once, and at most one step is asked for at a time.

const PLAY_INTERVAL_MS = 900;
const GIVE_UP_MS = 5000;

export default function (component) {
  const root = component.parentElement;
  root.orrery ??= new Board(root);
  root.orrery.update(component.data, component.setTriggerValue);
  return () => root.orrery.leave();
}

class Board {
  constructor(root) {
    this.root = root;
    this.board = root.querySelector(".board");
    this.tip = root.querySelector(".tip");
    this.help = root.querySelector(".words");
    this.help.addEventListener("click", () => this.help.close());
    this.source = root.querySelector(".source");
    this.source.addEventListener("click", (event) => { if (event.target === this.source) this.source.close(); });
    this.shown = {};
    this.sent = null; // the step asked for and not yet drawn
    this.next = null; // the step to ask for after that
    this.playing = null;
    this.board.addEventListener("click", (event) => this.onClick(event));
    this.board.addEventListener("pointerdown", (event) => this.onScrub(event));
    this.board.addEventListener("pointermove", (event) => this.onScrub(event));
    this.board.addEventListener("pointerover", (event) => this.onHover(event));
    this.board.addEventListener("pointerleave", () => this.unhover());
    this.board.addEventListener("change", (event) => this.onChange(event));
    this.onKey = this.onKey.bind(this);
    document.addEventListener("keydown", this.onKey);
  }

  leave() {
    this.stop();
    document.removeEventListener("keydown", this.onKey);
  }

  update(data, setTriggerValue) {
    this.setTriggerValue = setTriggerValue;
    this.data = data;
    for (const [name, html] of Object.entries(data.parts)) this.draw(name, html);
    this.board.dataset.step = data.step;
    this.sent = null;
    this.cursor(this.next ?? data.step);
    if (this.next !== null && this.next !== data.step) this.ask(this.next);
    this.next = null;
    if (this.playing && data.step >= data.last && !data.growing) this.stop();
  }

  draw(name, html) {
    if (this.shown[name] === html) return;
    const part = this.board.querySelector(`[data-part="${name}"]`);
    const scrolled = new Map([...part.querySelectorAll("[data-scroll]")].map((e) => [e.dataset.scroll, e.scrollLeft]));
    part.innerHTML = html;
    for (const e of part.querySelectorAll("[data-scroll]")) e.scrollLeft = scrolled.get(e.dataset.scroll) ?? 0;
    this.shown[name] = html;
    this.unhover();
  }

  // --- stepping

  get step() {
    return this.next ?? this.sent ?? this.data.step;
  }

  go(step) {
    step = Math.max(this.data.first, Math.min(this.data.last, step));
    if (step === this.step) return;
    this.cursor(step);
    if (this.sent === null) this.ask(step);
    else this.next = step;
  }

  ask(step) {
    this.sent = step;
    this.act({ step });
    clearTimeout(this.patience);
    this.patience = setTimeout(() => { this.sent = null; this.next = null; }, GIVE_UP_MS);
  }

  act(what) {
    this.setTriggerValue("act", what);
  }

  cursor(step) {
    const { first, last } = this.data;
    const spine = this.board.querySelector(".bars");
    if (!spine) return;
    const per = Number(spine.dataset.per);
    const bars = spine.children;
    this.now?.classList.remove("now");
    this.now = bars[Math.floor((step - first) / per)];
    this.now?.classList.add("now");
    const field = this.board.querySelector("input.jump");
    if (field && this.root.activeElement !== field) field.value = step;
    this.mark("[data-go='-1'], [data-go='first']", step <= first);
    this.mark("[data-go='1'], [data-go='last']", step >= last);
  }

  mark(selector, disabled) {
    for (const button of this.board.querySelectorAll(selector)) button.disabled = disabled;
  }

  play() {
    this.playing = setInterval(() => {
      if (this.sent !== null) return;
      if (this.data.step < this.data.last) this.go(this.data.step + 1);
    }, PLAY_INTERVAL_MS);
    this.board.classList.add("playing");
    if (this.data.step >= this.data.last) this.go(this.data.first);
  }

  stop() {
    clearInterval(this.playing);
    this.playing = null;
    this.board.classList.remove("playing");
  }

  // --- what people do

  onClick(event) {
    if (event.target.closest("[data-help]")) return this.help.showModal();
    const code = event.target.closest("[data-code]");
    if (code) return this.showCode(code.dataset.code);
    const go = event.target.closest("[data-go]");
    if (go) return this.move(go.dataset.go);
    const act = event.target.closest("[data-act]");
    if (act) {
      event.preventDefault();
      const [name, value] = act.dataset.act.split(":");
      this.act({ [name]: value ?? true });
    }
  }

  showCode(place) {
    const template = this.board.querySelector(`template[data-source="${CSS.escape(place)}"]`);
    this.source.replaceChildren(template.content.cloneNode(true));
    this.source.showModal();
  }

  move(where) {
    if (where === "play") return this.playing ? this.stop() : this.play();
    this.stop();
    if (where === "first") this.go(this.data.first);
    else if (where === "last") this.go(this.data.last);
    else this.go(this.step + Number(where));
  }

  onScrub(event) {
    const spine = event.target.closest(".track");
    if (!spine || (event.type === "pointermove" && event.buttons !== 1)) return;
    const { left, width } = this.board.querySelector(".bars").getBoundingClientRect();
    const count = this.data.last - this.data.first + 1;
    const share = Math.max(0, Math.min(0.999999, (event.clientX - left) / width));
    this.stop();
    this.go(this.data.first + Math.floor(share * count));
  }

  onChange(event) {
    if (!event.target.matches("input.jump")) return;
    const step = parseInt(event.target.value, 10);
    event.target.blur();
    this.stop();
    if (Number.isNaN(step)) this.cursor(this.step);
    else { this.go(step); this.cursor(this.step); }
  }

  onKey(event) {
    const typing = event.composedPath()[0];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing.matches?.("input, textarea, select, [contenteditable=true]")) return;
    if (!this.board.isConnected) return;
    if (event.key === "?") return this.help.showModal();
    if (!this.board.querySelector(".bars") || this.root.querySelector("dialog[open]")) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: "first", End: "last", " ": "play" };
    if (event.key in moves) {
      // On a button, the space bar presses the button.
      if (event.key === " " && typing.matches?.("button, a")) return;
      event.preventDefault();
      this.move(moves[event.key]);
      return;
    }
    const view = this.board.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (view) view.click();
  }

  // --- pointing: the same block, slot or request lights up in every panel

  onHover(event) {
    this.unhover();
    const target = event.target.closest("[data-tip], [data-slot], [data-block]");
    if (!target) return;
    for (const name of ["slot", "block"]) {
      if (!(name in target.dataset)) continue;
      for (const twin of this.board.querySelectorAll(`[data-${name}="${target.dataset[name]}"]`)) {
        twin.classList.add("lit");
      }
      break;
    }
    if (target.dataset.tip) this.showTip(target);
  }

  showTip(target) {
    const tip = this.tip;
    tip.textContent = target.dataset.tip;
    tip.hidden = false;
    const at = target.getBoundingClientRect();
    const box = tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(innerWidth - box.width - 8, at.left + at.width / 2 - box.width / 2));
    const above = at.top - box.height - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : at.bottom + 8}px`;
  }

  unhover() {
    for (const e of this.board.querySelectorAll(".lit")) e.classList.remove("lit");
    this.tip.hidden = true;
  }
}
