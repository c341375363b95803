"use strict";
// One slider with a play button over the steps of a run; everything on the page follows it.
hw.player = (into, count, words, onshow, { delay = 350 } = {}) => {
  let timer = null;
  let at = count - 1;
  const slider = hw.el("input", { type: "range", min: "0", max: String(count - 1), value: String(at), class: "slider", "aria-label": "snapshot" });
  const said = hw.el("output", { class: "step" });
  const play = hw.el("button", { type: "button", class: "play", "aria-label": "play" }, "▶ play");
  const part = (label, words, move) => hw.el("button", { type: "button", "aria-label": label, onclick: () => { stop(); show(move()); } }, words);

  function show(index) {
    at = Math.max(0, Math.min(index, count - 1));
    slider.value = String(at);
    said.textContent = words(at);
    slider.setAttribute("aria-valuetext", words(at));
    onshow(at);
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶ play";
    play.setAttribute("aria-label", "play");
  }
  function start() {
    if (at === count - 1) show(0);
    play.textContent = "❚❚ pause";
    play.setAttribute("aria-label", "pause");
    timer = setInterval(() => (at < count - 1 ? show(at + 1) : stop()), delay);
  }

  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  play.addEventListener("click", () => (timer ? stop() : start()));
  into.append(hw.el("div", { class: "player" }, play, part("one snapshot back", "‹", () => at - 1), slider,
    part("one snapshot on", "›", () => at + 1), said));
  show(at);
  return {
    show, stop, at: () => at, playing: () => timer !== null,
    /** More snapshots came in; a reader who stood at the last one follows. */
    grow(next) {
      const follow = at === count - 1 && !timer;
      count = next;
      slider.max = String(count - 1);
      show(follow ? count - 1 : at);
    },
  };
};
