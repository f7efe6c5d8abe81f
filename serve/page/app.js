// The page: asks for the stats every two seconds, and shows them.

import { $, ask, bar, count, drive, fill, make, memory, percent, seconds, span, stack, time, token }
  from "./parts.js";
import { seen as settingsSeen } from "./settings.js";
import { modelIs } from "./chat.js";

const EVERY_MS = 2000;
const TIMEOUT_MS = 20000;
const SURE_MS = 4000;
const TIERS = ["resident", "park", "store", "disk", "spill"];
const NAMES = {
  rows: "rows in place",
  anchors: "anchors",
  end: "end anchors",
  stash: "a guest's stash",
  park: "parked and pinned",
  store: "state store",
  disk: "disk tier's buffers",
  spill: "spill's buffers",
  encoded: "encoded pictures",
  responses: "response cache",
};
const WORST = {
  anchors: "anchors",
  end: "end anchor",
  stash: "stash",
  park: "pool: parked and pinned",
  store: "state store",
  disk: "the disk tier's buffers",
  spill: "the spill's buffers",
};

function about(stats) {
  const queue = stats.queue;
  const said = [
    ["model", stats.model || "–"],
    ["window", count(stats.window)],
    ["up", span(stats.uptime_s)],
    ["serving", `${queue.active ?? "–"} of ${queue.slots}`],
    ["waiting", queue.waiting ?? "–"],
  ];
  if (stats.turns.journal_rows_unwritten) {
    said.push(["rows not written", count(stats.turns.journal_rows_unwritten)]);
  }
  $("about").replaceChildren(...said.map(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", String(value)));
    return pair;
  }));
}

function reuse(stats) {
  const { prompt_tokens: all, cached_tokens: cached, turns } = stats.turns;
  const parts = stats.tiers
    .filter((tier) => tier.cached_tokens)
    .map((tier) => [tier.name, tier.cached_tokens]);
  parts.push(["forwarded", Math.max(0, all - cached)]);
  const share = (n) => (all ? n / all : 0);
  const title = ([name, n]) => `${name} ${count(n)} (${percent(share(n))})`;
  const label = parts.map(title).join(", ");
  stack($("reuse-bar"), parts.map((one) => [`is-${one[0]}`, share(one[1]), title(one)]), label);
  $("reuse-note").textContent = all
    ? `${count(all)} in ${count(turns)} turns, ${percent(share(cached))} of them cached`
    : "no turn yet";
  $("reuse-legend").replaceChildren(...(all ? parts : []).map((one) => {
    const item = make("li");
    item.append(make("i", `is-${one[0]}`), title(one));
    return item;
  }));
}

function plan(stats) {
  const { caches, limits, worst } = stats.memory;
  const rows = [];
  if (limits) {
    const held = stats.memory.allocated_bytes + stats.memory.reserve_bytes;
    const peak = limits.peak_bytes;
    const line = (name, nbytes, most) => [
      ["", name],
      ["wide", bar(held / nbytes, 0.95)],
      ["n", memory(held)],
      ["n", memory(nbytes)],
      [most > nbytes ? "n bad" : "n", memory(most)],
    ];
    rows.push(line("engine, between requests", limits.ceiling_bytes, worst.resting_bytes));
    rows.push(line("engine, during a prefill", peak, worst.passing_bytes));
  }
  $("limits").hidden = !rows.length;
  fill($("limits"), rows);
  fill($("caches"), caches.map((cache) => [
    ["", NAMES[cache.name] || cache.name],
    ["wide", cache.budget_bytes ? bar(cache.held_bytes / cache.budget_bytes) : make("div")],
    ["n", memory(cache.held_bytes)],
    ["n", memory(cache.budget_bytes)],
    ["n faint", worst && WORST[cache.name] ? memory(worst.resting[WORST[cache.name]]) : ""],
  ]));
  const given = Object.values(stats.memory.shed || {}).reduce((sum, n) => sum + n, 0);
  $("memory-note").textContent = limits
    ? `slack ${memory(limits.slack_bytes)}, given back so far ${memory(given)}, ` +
      `prompts refused ${count(stats.memory.refused)}`
    : "nobody counts this engine's memory";
  if (stats.memory.resident_files) {
    $("memory-note").textContent +=
      `, page cache kept for the model ${memory(stats.memory.resident_files)}`;
  }
  if (!worst) return;
  $("worst").className = worst.fits ? "note" : "note bad";
  $("worst").textContent = worst.fits
    ? `With every budget full and a prompt of the whole window: ${memory(worst.most_bytes)}.`
    : `With every budget full the limits are reached at ${memory(worst.most_bytes)}: ` +
      "caches give back, or a prompt is refused.";
}

function tiers(stats) {
  fill($("tier-rows"), stats.tiers.map((tier) => {
    const onDrive = tier.name === "disk" || tier.name === "spill";
    const bytes = onDrive ? drive : memory;
    const name = make("span");
    name.append(make("i", `dot is-${tier.name}`), tier.name);
    if (tier.mode && tier.mode !== "on") name.append(make("span", "faint", ` (${tier.mode})`));
    return [
      ["", name],
      ["n", count(tier.entries)],
      ["n", bytes(tier.held_bytes)],
      ["n", bytes(tier.budget_bytes)],
      ["wide", tier.budget_bytes ? bar(tier.held_bytes / tier.budget_bytes) : make("div")],
      ["n", count(tier.turns)],
      ["n", percent(tier.hit_rate)],
      ["n", count(tier.cached_tokens)],
      ["n", percent(tier.token_rate)],
    ];
  }));
  for (const button of $("clear").querySelectorAll("button")) {
    const tier = button.dataset.tier;
    button.hidden = (tier === "disk" || tier === "spill") && !stats[tier];
  }
}

function writes(stats) {
  const told = stats.writes;
  const level = $("write-level");
  level.textContent = told ? told.level : "";
  level.className = `badge ${told ? told.level : ""}`;
  $("write-days").hidden = !told;
  $("write-bar").hidden = !told;
  $("write-days-note").textContent = "";
  if (!told) {
    $("write-note").textContent = "Nothing is kept on a drive: start with --cache-dir.";
    return;
  }
  const { budget_bytes: budget, tier_bytes: heads, spill_bytes: spilled } = told;
  const scale = Math.max(budget, heads + spilled, 1);
  const parts = [["is-tier", heads / scale, "heads"], ["is-spill", spilled / scale, "conversations"]];
  const said = `${drive(heads + spilled)} of ${drive(budget)}`;
  stack($("write-bar"), parts, said);
  const skips = told.skips ? `, ${count(told.skips)} not written` : "";
  $("write-note").textContent =
    `${said}: heads ${drive(heads)}, conversations ${drive(spilled)}${skips}`;
  const most = Math.max(...told.days.map((day) => day.tier_bytes + day.spill_bytes), 1);
  $("write-days").replaceChildren(...told.days.map((day) => {
    const column = make("span");
    column.title = `${day.date}: ${drive(day.tier_bytes + day.spill_bytes)}`;
    for (const [className, nbytes] of [["is-spill", day.spill_bytes], ["is-tier", day.tier_bytes]]) {
      const piece = make("i", className);
      piece.style.height = `${(100 * nbytes) / most}%`;
      column.append(piece);
    }
    return column;
  }));
  $("write-days").setAttribute("aria-label", `${told.days.length} days, at most ${drive(most)}`);
  const days = told.days.length === 1 ? "today alone" : `the last ${told.days.length} days`;
  $("write-days-note").textContent = `${days}, ${drive(most > 1 ? most : 0)} at most`;
}

function lists(stats) {
  fill($("prefix-rows"), stats.prefixes.map((prefix) => [
    ["", prefix.tier],
    ["n", count(prefix.tokens)],
    ["n", count(prefix.hits)],
    ["code", prefix.packages.join(" ")],
  ]), stats.disk ? "none was read yet" : "nothing is kept on a drive");
  fill($("turn-rows"), stats.last_turns.map((turn) => {
    const lost = Object.entries(turn.lost).map(([cause, n]) => `${cause} ${count(n)}`).join(", ");
    const parted = turn.parted_in ? `parts at ${count(turn.parted_at)} in ${turn.parted_in}` : "";
    const hint = [parted, lost && `read again: ${lost}`].filter(Boolean).join("; ");
    return [
      ["faint", time(turn.at)],
      ["", turn.client],
      ["", turn.guest ? `${turn.kind}, guest` : turn.kind],
      ["code", turn.session || "–"],
      ["n", count(turn.prompt)],
      ["n", count(turn.cached)],
      ["n", count(turn.forwarded)],
      ["n", count(turn.output)],
      ["code", turn.source, turn.gate && `${turn.gate} gate`],
      ["code", turn.parted_in ? `${turn.why} in ${turn.parted_in}` : turn.why, hint],
      ["n", seconds(turn.prefill_s)],
      ["n", seconds(turn.decode_s)],
      [turn.finish === "refused" ? "bad" : "", turn.finish],
    ];
  }));
  $("turns-note").textContent = stats.turns.turns ? `of ${count(stats.turns.turns)}` : "";
  fill($("event-rows"), stats.events.map((event) => [
    ["faint", time(event.at)],
    ["", event.tier],
    ["", event.event],
    ["code", event.session || "–"],
    ["n", count(event.tokens)],
    ["n", event.bytes ? drive(event.bytes) : ""],
    ["code", event.why],
  ]));
}

export function show(stats) {
  for (const part of [about, reuse, plan, tiers, writes, lists]) part(stats);
  modelIs(stats.model);
  settingsSeen(stats.revision);
}

// the clock

let last = 0;
let timer = null;

async function look() {
  clearTimeout(timer);
  try {
    show(await ask("/v1/cache/stats", { signal: AbortSignal.timeout(TIMEOUT_MS) }));
    last = Date.now();
    $("alarm").hidden = true;
  } catch (error) {
    const since = last ? ` Figures are from ${time(last / 1000)}.` : "";
    $("alarm").textContent = `${error.message || error}.${since}`.replace("..", ".");
    $("alarm").hidden = false;
  }
  clearTimeout(timer);
  timer = setTimeout(look, EVERY_MS);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else look();
});

$("token").value = token.get();
$("token").addEventListener("change", () => {
  token.set($("token").value.trim());
  look();
});

/** A click asks whether it is meant, the next one within a few seconds does it. */
for (const button of $("clear").querySelectorAll("button")) {
  const name = button.textContent;
  let sure = null;
  const calm = () => {
    clearTimeout(sure);
    sure = null;
    button.textContent = name;
    button.classList.remove("sure");
  };
  button.addEventListener("click", async () => {
    if (!sure) {
      button.textContent = `clear ${name}?`;
      button.classList.add("sure");
      sure = setTimeout(calm, SURE_MS);
      return;
    }
    calm();
    const note = $("clear-note");
    try {
      const done = await ask(`/v1/cache/clear?tier=${button.dataset.tier}`, { method: "POST" });
      note.className = "note good";
      note.textContent = `Cleared: ${done.cleared.join(", ") || "nothing"}.`;
    } catch (error) {
      note.className = "note bad";
      note.textContent = error.message;
    }
    look();
  });
}

look();
