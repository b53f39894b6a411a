// Draws the HTML that Python sends, and reports what was clicked, dragged or typed as one small object, `act`.
// Stepping stays fluid on a slow link: the cursor moves at once, and at most one step is asked for at a time.

const PLAY_INTERVAL_MS = 900;
const SPEEDS = [0.5, 1, 2, 4, 8];
const GIVE_UP_MS = 5000;

export default function (component) {
  const root = component.parentElement;
  root.orrery ??= new Board(root);
  root.orrery.update(component.data, component.setTriggerValue);
  return () => root.orrery.leave();
}

// Streamlit dresses the page as the browser wishes. A theme in the address takes the place of that wish; Streamlit asks
// for it again after the page was printed, so that is what it is told.

const nativeMedia = window.matchMedia.native ?? window.matchMedia.bind(window);

function wear(theme) {
  if (theme === (window.matchMedia.worn ?? null)) return;
  window.matchMedia = (query) => {
    if (theme === null || !query.includes("prefers-color-scheme")) return nativeMedia(query);
    return Object.assign(new EventTarget(), { media: query, matches: query.includes(theme) });
  };
  Object.assign(window.matchMedia, { native: nativeMedia, worn: theme });
  window.dispatchEvent(new Event("afterprint"));
}

class Board {
  constructor(root) {
    this.root = root;
    this.board = root.querySelector(".board");
    this.tip = root.querySelector(".tip");
    this.help = root.querySelector(".words");
    this.help.addEventListener("click", () => this.help.close());
    this.source = root.querySelector(".source");
    this.source.addEventListener("click", (event) => {
      if (event.target === this.source || event.target.closest("[data-close]")) this.source.close();
    });
    this.shown = {};
    this.sent = null; // the step asked for and not yet drawn
    this.next = null; // the step to ask for after that
    this.playing = null;
    this.speed = 1;
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
    this.dress(data.theme);
    for (const [name, html] of Object.entries(data.parts)) this.draw(name, html);
    this.board.dataset.step = data.step;
    this.sent = null;
    this.cursor(this.next ?? data.step);
    if (this.next !== null && this.next !== data.step) this.ask(this.next);
    this.next = null;
    if (this.playing && data.step >= data.last && !data.growing) this.stop();
  }

  // Only what is news to this board: another theme makes Streamlit update every board that there is, and that of the page
  // just left, which is still there until the new one is complete, knows an old theme.
  dress(theme) {
    if (theme === this.theme) return;
    this.theme = theme;
    wear(theme);
  }

  draw(name, html) {
    if (this.shown[name] === html) return;
    const part = this.board.querySelector(`[data-part="${name}"]`);
    const scrolled = new Map([...part.querySelectorAll("[data-scroll]")].map((e) => [e.dataset.scroll, e.scrollLeft]));
    const typed = part.querySelector("input:focus");
    part.innerHTML = html;
    if (typed) this.goOnTyping(part.querySelector(`input.${typed.className}`), typed);
    for (const e of part.querySelectorAll("[data-scroll]")) e.scrollLeft = scrolled.get(e.dataset.scroll) ?? 0;
    this.shown[name] = html;
    this.unhover();
  }

  // What is drawn anew while somebody types keeps what was typed, and where.
  goOnTyping(field, { value, selectionStart, selectionEnd }) {
    field?.focus();
    if (field) Object.assign(field, { value, selectionStart, selectionEnd });
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
    this.showSpeed();
  }

  mark(selector, disabled) {
    for (const button of this.board.querySelectorAll(selector)) button.disabled = disabled;
  }

  play() {
    this.tick();
    this.board.classList.add("playing");
    if (this.data.step >= this.data.last) this.go(this.data.first);
  }

  tick() {
    clearInterval(this.playing);
    this.playing = setInterval(() => {
      if (this.sent !== null) return;
      if (this.data.step < this.data.last) this.go(this.data.step + 1);
    }, PLAY_INTERVAL_MS / this.speed);
  }

  changeSpeed(by) {
    const place = SPEEDS.indexOf(this.speed) + by;
    this.speed = SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, place))];
    this.showSpeed();
    if (this.playing) this.tick();
  }

  showSpeed() {
    const shown = this.board.querySelector(".speed output");
    if (shown) shown.textContent = `${this.speed}×`;
    this.mark("[data-speed='-1']", this.speed === SPEEDS[0]);
    this.mark("[data-speed='1']", this.speed === SPEEDS.at(-1));
  }

  stop() {
    clearInterval(this.playing);
    this.playing = null;
    this.board.classList.remove("playing");
  }

  // --- what people do

  onClick(event) {
    this.unhover();
    if (event.target.closest("[data-help]")) return this.openHelp();
    const code = event.target.closest("[data-code]");
    if (code) return this.showCode(code.dataset.code);
    const go = event.target.closest("[data-go]");
    if (go) return this.move(go.dataset.go);
    const speed = event.target.closest("[data-speed]");
    if (speed) return this.changeSpeed(Number(speed.dataset.speed));
    const find = event.target.closest("[data-find]");
    if (find) return find.dataset.find === "open" ? this.openFinder() : this.closeFinder();
    if (event.target.closest("[data-theme]")) return this.changeTheme();
    const act = event.target.closest("[data-act]");
    if (act) {
      event.preventDefault();
      const parts = act.dataset.act.split("&").map((part) => part.split(":"));
      const [[name, value]] = parts;
      if (name === "jump" || name === "find") this.jump({ [name]: value });
      else this.act(Object.fromEntries(parts.map(([name, value]) => [name, value ?? true])));
    }
  }

  // --- searching and jumping: only the trace knows where it leads

  jump(what) {
    this.stop();
    this.act({ ...what, from: this.step });
    this.next = null;
  }

  openFinder() {
    this.board.classList.add("finding");
    const field = this.board.querySelector("input.find");
    field.focus();
    field.select();
  }

  closeFinder() {
    this.board.classList.remove("finding");
    const field = this.board.querySelector("input.find");
    field.blur();
    field.value = "";
    if (this.data.find) this.act({ find: "" });
  }

  onFind(event, text) {
    if (event.key === "Enter" && text) this.jump({ find: text, towards: event.shiftKey ? "previous" : "next" });
    else if (event.key === "Escape" || event.key === "Enter") this.leaveFinder(text);
    else return;
    event.preventDefault();
  }

  // What is looked for stays looked for, so that n and N go on; an empty field is put away.
  leaveFinder(text) {
    if (!text) this.closeFinder();
    else this.board.querySelector("input.find").blur();
  }

  changeTheme() {
    const wished = nativeMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const other = (this.data.theme ?? wished) === "dark" ? "light" : "dark";
    this.act({ theme: other === wished ? "none" : other });
  }

  openHelp() {
    this.help.showModal();
    this.help.scrollTop = 0; // its button has the focus, and stands at the end
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
    if (typing.matches?.("input.find") && this.root.contains(typing)) return this.onFind(event, typing.value.trim());
    if (typing.matches?.("input, textarea, select, [contenteditable=true]")) return;
    if (!this.board.isConnected) return;
    if (event.key === "?") return this.openHelp();
    if (this.root.querySelector("dialog[open]")) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: "first", End: "last", " ": "play" };
    if (event.key in moves && this.board.querySelector(".bars")) {
      // On a button, the space bar presses the button.
      if (event.key === " " && typing.matches?.("button, a")) return;
      event.preventDefault();
      this.move(moves[event.key]);
      return;
    }
    const button = this.board.querySelector(`[data-key="${CSS.escape(event.key === "=" ? "+" : event.key)}"]`);
    if (!button) return;
    event.preventDefault(); // the key that opens the field is not to be typed into it
    button.click();
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
