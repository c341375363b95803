"use strict";
// Nothing to show yet: look again until the run has its first snapshot.
hw.ready(() => {
  const look = async () => {
    try {
      const news = await (await fetch("news.json", { cache: "no-store" })).json();
      if (news.reset) location.reload();
      if (news.trouble) document.querySelector(".intro").textContent = news.trouble;
    } catch {
      document.querySelector(".intro").textContent = "headwatch watch does not answer.";
    }
    setTimeout(look, 2000);
  };
  document.documentElement.dataset.ready = "yes";
  look();
});
