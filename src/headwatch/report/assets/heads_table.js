"use strict";
// All heads as a table at the chosen snapshot.
hr.headsTable = (body) => {
  const { profile, signature } = hr.kinds;
  const kind = hr.main;
  const step = () => Math.max(0, kind.at(hr.step.get()));
  const metricColumn = (of, key) => ({
    key, title: hr.title(key), tip: hr.explain(key), number: true,
    value: (row) => {
      const i = of === kind ? row : of.index.get(kind.labels[row]);
      return i === undefined ? NaN : of.value(key, of.at(hr.step.get()), i);
    },
  });
  const shown = (of) => of.keys.filter((key) => !["head_type", "beyond_null"].includes(key) && !key.endsWith("_std"));
  const text = (key, title, tip, value) => ({ key, title, tip, value });
  const columns = [
    text("label", "head", "layer and query head", (row) => kind.labels[row]),
    text("module", "module", "qualified name of the attention module", (row) => kind.modules[kind.module[row]]),
  ];
  if (profile) {
    columns.push(text("head_type", "type", hr.explain("head_type"), (row) => hr.typeNames[hr.typeOf(profile, step(), row)] ?? "–"));
    if (profile.has("beyond_null")) {
      columns.push(text("beyond_null", "chance", "whether the head lies outside what random weights of this shape give", (row) => ["within", "beyond"][profile.value("beyond_null", step(), row)] ?? "–"));
      columns.push({ key: "left_null_step", title: "left chance at", tip: "first snapshot from which the head stayed beyond chance", number: true, value: (row) => profile.left_null_step?.[row] ?? NaN });
    }
    columns.push(...shown(profile).map((key) => metricColumn(profile, key)));
  }
  if (signature) columns.push(...shown(signature).map((key) => metricColumn(signature, key)));
  columns.push(text("status", "status", "proven: predicted scores equal the model's; structural: read by rule", (row) => kind.status[row]));
  columns.push(text("flags", "flags", "what a reader must know about the head", (row) => kind.flags[row]));

  const meanings = hw.el("details", {}, hw.el("summary", {}, "what the columns mean"), hw.el("dl", { class: "facts" },
    columns.filter((c) => c.tip).flatMap((c) => [hw.el("dt", {}, `${c.title} (${c.key})`), hw.el("dd", {}, c.tip)])));
  const table = hw.table(body, {
    columns, count: () => kind.count, label: "heads at the chosen snapshot",
    picked: (row) => hr.picked.get().has(kind.labels[row]), onpick: (row) => hr.pick(kind.labels[row]),
  });
  body.append(meanings);
  hr.step.listen(table.refresh);
  hr.picked.listen(table.paint);
};
