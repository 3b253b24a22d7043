"use strict";
const at = id => document.getElementById(id);
const KEYS = 9; // classes that have a digit of their own
let state = null, current = null, shown = [], busy = false, waiting = null;

function make(kind, text, attributes = {}) {
  const element = Object.assign(document.createElement(kind), attributes);
  if (text !== undefined) element.textContent = text;
  return element;
}

async function ask(path, body) {
  const how = body === undefined ? {} :
    { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try { answer = await fetch(path, how); }
  catch { throw new Error("The server does not answer: start evenhand label again. Answers given so far are saved."); }
  const data = await answer.json().catch(() => ({}));
  if (answer.ok) return data;
  const why = data.detail;
  throw new Error(Array.isArray(why) ? why.map(one => one.msg).join("; ") : why || answer.statusText);
}

// One request at a time, so that a key held down answers one sample; what must not be lost waits its turn.
async function act(work, later = false) {
  if (busy) { if (later) waiting = work; return; }
  busy = true;
  at("error").hidden = true;
  try { await work(); }
  catch (error) { at("error").textContent = error.message; at("error").hidden = false; }
  finally { busy = false; }
  const next = waiting;
  waiting = null;
  if (next) await act(next);
}

const labeller = () => at("labeller").value.trim() || "me";
const load = () => act(async () => see(await ask("/api/state?labeller=" + encodeURIComponent(labeller()))), true);
const answer = (label, more = {}) => current && act(async () =>
  see(await ask("/api/answers", { rank: current.rank, label, labeller: labeller(), ...more })));
const undo = () => act(async () => {
  const next = await ask("/api/undo", { labeller: labeller() });
  see(next, next.undone || undefined);
});
const finish = () => act(async () => {
  const next = await ask("/api/finish", { labeller: labeller() });
  see(next);
  at("written").textContent = "Written: " + next.written;
});
const add = () => act(async () => {
  const name = at("search").value.trim();
  if (!name) throw new Error("Type the new class into the search box first.");
  const pick = current;
  see(await ask("/api/classes", { name, labeller: labeller() }), pick);
  at("search").value = name;
  list();
});

function see(next, pick) {
  state = next;
  current = pick || state.next;
  at("progress").max = state.total;
  at("progress").value = state.done;
  at("count").textContent = `${state.done} of ${state.total} labelled, ${state.left} left for ${state.labeller}`;
  at("adding").hidden = !state.new_classes;
  at("work").hidden = !current;
  at("ready").hidden = Boolean(current);
  at("written").textContent = "";
  at("search").value = "";
  if (current) picture(); else at("ready").focus();
  list();
  differences();
}

function picture() {
  const image = at("image"), text = at("text");
  image.hidden = !current.image;
  text.hidden = current.image;
  text.textContent = current.text;
  if (current.image) {
    image.alt = current.name;
    image.className = "";
    image.onload = () => { image.className = Math.max(image.naturalWidth, image.naturalHeight) < 200 ? "small" : ""; };
    image.onerror = () => {
      image.hidden = true; text.hidden = false;
      text.textContent = "This image cannot be shown (gone, damaged, too large or outside the pool): skip it.";
    };
    image.src = "/api/images/" + current.rank;
    const after = state.next && state.next.rank !== current.rank ? state.next.rank : null;
    if (after !== null) new Image().src = "/api/images/" + after;
  }
  at("name").textContent = current.name;
  const said = Object.entries(current.others).map(([who, what]) => `${who}: ${what}`);
  if (current.label) said.unshift("labelled " + current.label);
  if (current.mine) said.push("you: " + current.mine);
  at("remark").textContent = said.length ? `(${said.join("; ")})` : "";
}

function choice(name, number, share) {
  const button = make("button");
  if (number <= KEYS) button.append(make("kbd", String(number)));
  button.append(make("span", name));
  if (share !== undefined && share !== null) button.append(make("span", Math.round(100 * share) + " %", { className: "share" }));
  button.onclick = () => answer(name);
  const row = make("li");
  row.append(button);
  return row;
}

function list() {
  const wanted = at("search").value.trim().toLowerCase();
  const guesses = current && !wanted ? current.guesses : [];
  const guessed = new Set(guesses.map(guess => guess.name));
  const rest = state.classes.filter(name => !guessed.has(name) && name.toLowerCase().includes(wanted));
  rest.sort((a, b) => b.toLowerCase().startsWith(wanted) - a.toLowerCase().startsWith(wanted));
  shown = [...guessed, ...rest];
  at("guesses").replaceChildren(...guesses.map((guess, k) => choice(guess.name, k + 1, guess.confidence)));
  at("classes").replaceChildren(...rest.map((name, k) => choice(name, guesses.length + k + 1)));
}

function differences() {
  at("differ").hidden = !state.conflicts.length;
  at("conflicts").replaceChildren(...state.conflicts.map(pick => {
    const row = make("li");
    if (pick.image) row.append(make("img", undefined, { src: "/api/images/" + pick.rank, alt: pick.name }));
    row.append(make("span", pick.image ? pick.name : pick.text.slice(0, 200)));
    for (const what of new Set(Object.values(pick.others))) {
      if (what === "skipped") continue;
      const who = Object.keys(pick.others).filter(name => pick.others[name] === what).join(", ");
      const button = make("button", `${what} (${who})`);
      const given = what === "none of these" ? { none: true } : { label: what };
      button.onclick = () => act(async () => see(await ask("/api/answers",
        { rank: pick.rank, labeller: labeller(), settles: true, ...given })));
      row.append(button);
    }
    return row;
  }));
}

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const typing = event.target.tagName === "INPUT";
  if (event.key === "Escape") { at("search").value = ""; at("search").blur(); list(); return; }
  if (event.target === at("search") && event.key === "Enter" && at("search").value && shown.length) {
    event.preventDefault(); at("search").blur(); answer(shown[0]); return;
  }
  if (typing) return;
  const keys = { n: () => answer(null, { none: true }), s: () => answer(null), u: undo, "/": () => at("search").focus() };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  else if (/^[1-9]$/.test(event.key) && shown[event.key - 1] !== undefined && current) answer(shown[event.key - 1]);
});

at("search").oninput = list;
at("none").onclick = () => answer(null, { none: true });
at("skip").onclick = () => answer(null);
at("undo").onclick = at("undo2").onclick = undo;
at("finish").onclick = finish;
at("add").onclick = add;
at("labeller").value = localStorage.getItem("labeller") || "me";
at("labeller").onchange = () => { localStorage.setItem("labeller", labeller()); load(); };
load();
