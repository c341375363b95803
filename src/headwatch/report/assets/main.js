"use strict";
// Put the figures into their sections, and the player under all of them.
hw.ready(async () => {
  await hr.load();
  const { profile, signature } = hr.kinds;
  const plain = (kind) => kind.keys.filter((key) => key !== "head_type");

  const dock = hw.el("div", { class: "dock" });
  const inner = hw.el("div");
  dock.append(inner);
  document.body.append(dock);
  const words = (at) => `step ${hw.number(hr.main.steps[at])} (${at + 1} of ${hr.main.steps.length})`;
  hr.player = hw.player(inner, hr.main.steps.length, words, (at) => hr.step.set(hr.main.steps[at]));

  if (profile) {
    hr.simplexSection();
    hr.trajectories(hw.section("trajectories"), profile, plain(profile), "stable_rank");
    hr.maps(hw.section("maps"), profile, plain(profile), ["stable_rank", "theta_position"]);
    hr.loss(hw.section("loss"), profile, plain(profile).filter((key) => key !== "beyond_null"));
  }
  if (signature) hr.signatures(hw.section("signatures"), signature, plain(signature));
  if (profile && signature) hr.rankAndPeak(hw.section("rank-and-peak"), profile, signature);
  hr.headsTable(hw.section("heads"));
  document.documentElement.dataset.ready = "yes";
  hr.whenDrawn?.();
});
