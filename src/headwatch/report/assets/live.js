"use strict";
// Follow a run that is still going: ask the page's own server every two seconds for what came in.
hr.live = (() => {
  const said = hw.el("span", { class: "note", role: "status" });
  let failures = 0;

  const append = (old, more) => { const out = new Float32Array(old.length + more.length); out.set(old); out.set(more, old.length); return out; };

  async function take(kind, news) {
    if (!news.steps.length) return false;
    for (const key of kind.keys) {
      const more = news.arrays[key] ? await hw.unpack(news.arrays[key]) : new Float32Array(news.steps.length * kind.count).fill(NaN);
      kind.matrices[key] = append(kind.matrices[key], more);
    }
    for (const key of ["steps", "loss", "overhead"]) kind[key] = [...kind[key], ...news[key]];
    if (news.left_null_step?.length) kind.left_null_step = news.left_null_step;
    kind.spans.clear();
    return true;
  }

  function tell(news) {
    document.querySelector(".subtitle").textContent = news.subtitle;
    said.textContent = news.trouble ?? (news.live ? `following; looked at ${new Date().toLocaleTimeString()}` : "the run is over");
    hw.section("glance").firstElementChild.replaceChildren(...news.tiles.map((tile) => hw.el("div", { class: "tile" },
      ["label", "value", "why"].map((part) => hw.el("div", { class: part }, tile[part])))));
  }

  async function look() {
    const known = Object.values(hr.kinds).map((kind) => `${kind.name}=${kind.steps.length}:${kind.steps.at(-1)}`).join("&");
    const news = await (await fetch(`news.json?${known}`, { cache: "no-store" })).json();
    if (news.reset || Object.entries(news.kinds).some(([name, more]) => more.labels !== hr.kinds[name].count)) { location.reload(); return; }
    hw.data.summary = news.summary;
    let grew = false;
    for (const [name, more] of Object.entries(news.kinds)) grew = (await take(hr.kinds[name], more)) || grew;
    tell(news);
    if (grew) { hr.player.grow(hr.main.steps.length); hr.grown.set(hr.main.steps.length); }
  }

  async function follow() {
    try {
      await look();
      failures = 0;
    } catch {
      failures += 1;
      if (failures > 2) said.textContent = "headwatch watch does not answer; the page shows what it had";
    }
    setTimeout(follow, 2000);
  }
  hw.ready(() => { document.querySelector("header .heading").append(said); });
  return { follow, look };
})();

hr.whenDrawn = () => hr.live.follow();
