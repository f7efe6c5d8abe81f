// Parts of the page: elements, tables that are filled again and again, figures, and asking the server.

export const $ = (id) => document.getElementById(id);

/** An element with text in it. Text is only ever text: nothing here parses markup. */
export function make(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== "") made.textContent = text;
  return made;
}

/** A bar that is filled to a share; `near` is from where that is worth a look. */
export function bar(share, near = Infinity) {
  const made = make("div", "bar");
  if (!(share > 0)) return made;
  const filled = make("i", share >= near ? "full" : "");
  filled.style.width = `${100 * Math.min(1, share)}%`;
  made.append(filled);
  return made;
}

/** Fill a table's body: a row is a list of [class, text or element, title]. */
export function fill(body, rows, nothing = "nothing yet") {
  if (!rows.length) {
    const width = body.parentElement.tHead ? body.parentElement.tHead.rows[0].cells.length : 1;
    const cell = make("td", "empty", nothing);
    cell.colSpan = width;
    const row = make("tr");
    row.append(cell);
    body.replaceChildren(row);
    return;
  }
  body.replaceChildren(...rows.map((cells) => {
    const row = make("tr");
    for (const [className, what, title] of cells) {
      const cell = make("td", className);
      if (what instanceof Node) cell.append(what);
      else cell.textContent = what ?? "";
      if (title) cell.title = title;
      row.append(cell);
    }
    return row;
  }));
}

/** Parts of a whole beside each other: [class, share, title]. */
export function stack(into, parts, label) {
  into.replaceChildren(...parts.filter(([, share]) => share > 0).map(([className, share, title]) => {
    const piece = make("i", className);
    piece.style.width = `${100 * share}%`;
    piece.title = title;
    return piece;
  }));
  into.setAttribute("aria-label", label);
}

// figures

export const count = (n) => (n === null || n === undefined ? "–" : n.toLocaleString("en-US"));
export const percent = (share) =>
  share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`;
export const seconds = (s) => (s >= 100 ? s.toFixed(0) : s >= 1 ? s.toFixed(2) : s.toFixed(3));

function scaled(n, step, units) {
  if (n === null || n === undefined) return "–";
  let at = 0;
  while (Math.abs(n) >= step && at < units.length - 1) {
    n /= step;
    at += 1;
  }
  return `${at && n < 100 ? n.toFixed(n < 10 ? 2 : 1) : Math.round(n)} ${units[at]}`;
}

/** Bytes of memory, in powers of 1,024. */
export const memory = (n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
/** Bytes of a drive, in powers of 1,000. */
export const drive = (n) => scaled(n, 1000, ["B", "kB", "MB", "GB", "TB"]);

export function time(at) {
  return new Date(1000 * at).toLocaleTimeString("en-GB");
}

export function span(s) {
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} days`;
}

// the server

const KEY = "moorage.token";

export const token = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** Headers of a request; the token where there is one. */
export function headers(more = {}) {
  const said = token.get();
  return said ? { ...more, Authorization: `Bearer ${said}` } : more;
}

/** What the server refuses, with its status. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** What an error answer says. */
export async function refusal(response) {
  let said = "";
  try {
    said = (await response.json()).error.message;
  } catch {
    said = response.statusText;
  }
  const hint = response.status === 401 ? "Put the server's token into the field above. " : "";
  return new Refused(response.status, `${hint}${said || `status ${response.status}`}`);
}

/** Ask the server for JSON; raises Refused. */
export async function ask(path, how = {}) {
  const { body, ...rest } = how;
  const more = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await fetch(path, {
    ...rest,
    headers: headers(more),
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
  });
  if (!response.ok) throw await refusal(response);
  return response.json();
}
