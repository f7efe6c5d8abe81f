// The settings' form: made from the document itself, sends only what was changed.

import { $, ask, make } from "./parts.js";

const CHOICES = {
  "disk.mode": ["on", "read", "off"],
  "spill.mode": ["on", "read", "off"],
  "spill.codec": ["planes", "raw"],
  alignment: ["full", "off"],
  "compaction.mode": ["continue", "client"],
  "compaction.tail": ["cut", "whole"],
};
const UNITS = { gib: "GiB", gb: "GB", s: "s", days: "days", hours: "h", tokens: "tokens",
  rows: "rows", bytes: "bytes" };
const NULLABLE = /^serving\.(answer_tokens|thinking\.\w+)$/;

let revision = null;
let fields = [];
let loading = false;

/** A setting's name for people, and its unit. */
function named(name) {
  const words = name.replace(/_(max|min)$/, "").split("_");
  const most = name.match(/_(max|min)$/);
  const unit = words.length > 1 ? UNITS[words.at(-1)] : undefined;
  if (unit) words.pop();
  const label = words.join(" ") + (most ? (most[1] === "max" ? ", at most" : ", at least") : "");
  return [label, unit || ""];
}

function field(path, value) {
  const name = path.at(-1);
  const whole = path.join(".");
  const long = typeof value === "string" && !CHOICES[whole];
  const row = make("label", long ? "field tall-field" : "field");
  const [label, unit] = named(name);
  let input;
  if (CHOICES[whole]) {
    input = make("select");
    input.append(...CHOICES[whole].map((choice) => new Option(choice, choice)));
    input.value = value;
  } else if (typeof value === "boolean") {
    input = make("input");
    input.type = "checkbox";
    input.checked = value;
  } else if (long) {
    input = make("textarea");
    input.rows = 4;
    input.value = value;
  } else {
    input = make("input");
    input.type = "text";
    input.inputMode = "decimal";
    input.value = value === null ? "" : String(value);
    if (NULLABLE.test(whole)) input.placeholder = "no limit";
  }
  input.name = whole;
  row.title = whole;
  row.append(make("span", "", label), input);
  if (!long) row.append(make("small", "", path[1] === "thinking" ? "tokens" : unit));
  const one = { path, row, input, was: value };
  input.addEventListener("input", () => {
    row.classList.toggle("changed", differs(one));
    buttons();
  });
  return one;
}

/** What a field says now; a text that is no number goes to the server as it is, which refuses it. */
function now({ input, was }) {
  if (input.type === "checkbox") return input.checked;
  if (input.tagName !== "INPUT") return input.value;
  const text = input.value.trim().replaceAll(/[_,](?=\d{3})/g, "");
  if (text === "") return null;
  return Number.isFinite(Number(text)) ? Number(text) : input.value;
}

const differs = (one) => now(one) !== one.was;

function buttons() {
  const changed = fields.some(differs);
  $("settings-save").disabled = $("settings-undo").disabled = !changed;
}

function show(document_) {
  revision = document_.revision;
  fields = [];
  const sets = [];
  const add = (into, path, value) => {
    if (value !== null && typeof value === "object") {
      const set = make("fieldset");
      set.append(make("legend", "", path.join(", ")));
      for (const [name, inner] of Object.entries(value)) add(set, [...path, name], inner);
      sets.push(set);
      return;
    }
    const one = field(path, value);
    fields.push(one);
    into.append(one.row);
  };
  const loose = make("fieldset");
  loose.append(make("legend", "", "all tiers"));
  for (const [name, value] of Object.entries(document_)) {
    if (name !== "version" && name !== "revision") add(loose, [name], value);
  }
  $("settings-form").replaceChildren(...sets, loose);
  $("settings-note").textContent = `revision ${revision}, from the next request on`;
  buttons();
}

function said(text, className = "") {
  $("settings-said").textContent = text;
  $("settings-said").className = className;
}

async function load() {
  if (loading) return;
  loading = true;
  try {
    show(await ask("/v1/settings"));
  } catch (error) {
    said(error.message, "bad");
  } finally {
    loading = false;
  }
}

/** The stats name the revision in force: a form that nobody has touched follows it. */
export function seen(inForce) {
  if (inForce === revision) return;
  if (fields.some(differs)) {
    said(`Somebody changed the settings (revision ${inForce}). Undo shows theirs.`, "bad");
  } else {
    load();
  }
}

$("settings-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const patch = { revision };
  for (const one of fields.filter(differs)) {
    let at = patch;
    for (const name of one.path.slice(0, -1)) at = at[name] ??= {};
    at[one.path.at(-1)] = now(one);
  }
  try {
    show(await ask("/v1/settings", { method: "PUT", body: patch }));
    said(`Saved as revision ${revision}.`, "good");
  } catch (error) {
    said(error.message, "bad");
  }
});

$("settings-undo").addEventListener("click", () => {
  said("");
  load();
});
