// A live chat with the model, over the same route that every client uses.

import { $, count, headers, make, refusal } from "./parts.js";

let model = "";
let messages = [];
let session = crypto.randomUUID();
let stop = null;

export function modelIs(name) {
  model = name;
}

/** One message in the log. */
function said(role) {
  const block = make("div", `said ${role}`);
  block.append(make("div", "who", role === "user" ? "you" : "model"));
  $("chat-log").append(block);
  return block;
}

/** Stay at the end while somebody reads there. */
function follow(change) {
  const log = $("chat-log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

/** An answer on its way: reasoning apart, text, and what the server says of the turn. */
class Answer {
  constructor() {
    this.reasoning = "";
    this.text = "";
    this.block = said("assistant");
    this.status = make("div", "usage", "waiting …");
    this.block.append(this.status);
  }

  add(delta) {
    if (delta.reasoning_content) {
      this.reasoning += delta.reasoning_content;
      if (!this.thought) {
        this.details = make("details");
        this.details.open = true;
        this.thought = make("div", "text");
        this.details.append(make("summary", "", "reasoning"), this.thought);
        this.status.before(this.details);
      }
      this.thought.append(delta.reasoning_content);
      this.thought.scrollTop = this.thought.scrollHeight;
    }
    if (delta.content) {
      this.text += delta.content;
      if (!this.body) {
        this.body = make("div", "text");
        this.status.before(this.body);
        if (this.details) this.details.open = false;
      }
      this.body.append(delta.content);
    }
    this.status.textContent = this.body ? "" : this.thought ? "thinking …" : "";
  }

  /** Why it was so fast or slow. */
  ended(usage, finish, begun, first) {
    const parts = [];
    if (usage) {
      const cache = usage.tandem?.cache;
      parts.push(`prompt ${count(usage.prompt_tokens)}, answer ${count(usage.completion_tokens)}`);
      if (cache) {
        parts.push(`cached ${count(cache.cached)}, reread ${count(cache.reread)}`);
        parts.push(`source ${cache.source}, why no more: ${cache.why}`);
      }
    }
    if (first) parts.push(`first token ${((first - begun) / 1000).toFixed(2)} s`);
    if (finish && finish !== "stop") parts.push(`ended by ${finish}`);
    this.status.textContent = parts.join(" · ");
  }

  wrong(text) {
    this.status.className = "usage wrong";
    this.status.textContent = text;
  }
}

/** Events of a stream: its data as objects, its comments as text. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
      else if (line.startsWith("data:")) {
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield { data: JSON.parse(data) };
      }
    }
  }
}

async function send(text) {
  messages.push({ role: "user", content: text });
  const block = said("user");
  block.append(make("div", "text", text));
  const answer = new Answer();
  follow(() => {});
  $("chat-log").scrollTop = $("chat-log").scrollHeight;
  const body = { model, messages, stream: true, stream_options: { include_usage: true } };
  if ($("chat-effort").value) body.reasoning_effort = $("chat-effort").value;
  if ($("chat-most").value) body.max_completion_tokens = Number($("chat-most").value);
  const begun = performance.now();
  let first = 0;
  let usage = null;
  let finish = "";
  stop = new AbortController();
  working(true);
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers({ "Content-Type": "application/json", "X-Session-Id": session }),
      body: JSON.stringify(body),
      signal: stop.signal,
    });
    if (!response.ok) throw await refusal(response);
    for await (const { comment, data } of events(response)) {
      if (comment !== undefined) {
        if (!first) answer.status.textContent = comment;
        continue;
      }
      if (data.error) throw new Error(data.error.message);
      usage = data.usage || usage;
      const choice = data.choices?.[0];
      if (!choice) continue;
      finish = choice.finish_reason || finish;
      if (choice.delta.content || choice.delta.reasoning_content) {
        first ||= performance.now();
        follow(() => answer.add(choice.delta));
      }
    }
    follow(() => answer.ended(usage, finish, begun, first));
  } catch (error) {
    if (error.name === "AbortError") follow(() => answer.ended(usage, "you", begun, first));
    else follow(() => answer.wrong(error.message));
  }
  stop = null;
  working(false);
  if (answer.text || answer.reasoning) {
    const message = { role: "assistant", content: answer.text };
    if (answer.reasoning) message.reasoning_content = answer.reasoning;
    messages.push(message);
  } else {
    messages.pop();
  }
}

function working(busy) {
  $("chat-send").disabled = busy;
  $("chat-stop").disabled = !busy;
}

$("chat-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("chat-text").value.trim();
  if (!text || stop) return;
  $("chat-text").value = "";
  send(text);
});

$("chat-text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("chat-form").requestSubmit();
  }
});

$("chat-stop").addEventListener("click", () => stop?.abort());

$("chat-new").addEventListener("click", () => {
  stop?.abort();
  messages = [];
  session = crypto.randomUUID();
  $("chat-log").replaceChildren();
});
