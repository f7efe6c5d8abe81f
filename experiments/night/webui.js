// Drives Open WebUI's page in headless Chromium as the plan says.
// usage: node webui.js LANE.json   (playwright-core on NODE_PATH; the file is written by run.py)
'use strict';
const { chromium } = require('playwright-core');
const fs = require('fs');

const lane = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync'];
const urls = {};
const takes = {};
let page;
let current = null;
let idleSince = Date.now();

async function happened(name) {
  const reply = await fetch(`${lane.upstream}/night/wait?for=${encodeURIComponent(name)}&limit_s=240`);
  if (reply.status !== 200) throw new Error(`did not happen: ${name}`);
}

// The person thinks from the end of the last answer; what the page needs comes out of that time.
async function think(act) {
  const left = idleSince + act.think_s * 1000 / lane.factor - Date.now();
  if (left > 0) await sleep(left);
}

async function load(url) {
  await page.goto(url, { waitUntil: 'load' });
  await page.waitForSelector('#chat-input', { timeout: 30000 });
  await sleep(700);
}

async function enter(act) {
  if (current === act.session) return;
  current = act.session;
  await load(urls[act.session] || `${lane.page}/?models=${lane.model}`);
  if (!urls[act.session] && act.attachment) {
    await page.locator('input[type=file]:not(#camera-input)').first().setInputFiles(act.attachment);
    await sleep(3000);
  }
}

async function say(act) {
  await page.click('#chat-input');
  const lines = act.prompt.split('\n');
  for (let i = 0; i < lines.length; i++) {
    if (i) await page.keyboard.press('Shift+Enter');
    await page.keyboard.insertText(lines[i]);
  }
  await think(act);
  await page.keyboard.press('Enter');
}

async function regenerate(act) {
  await think(act);
  await page.locator('button[aria-label="Regenerate"]').last().click();
  await sleep(300);
  const again = page.getByText('Try Again', { exact: true });
  if (await again.count()) await again.last().click();
}

async function edit(act) {
  const message = page.locator('.user-message').filter({ hasText: act.replaced }).first();
  await message.hover();
  await message.locator('button[aria-label="Edit"]').click();
  const area = page.locator('textarea[id^="message-edit-"]').first();
  await area.fill(act.prompt);
  await think(act);
  await page.locator('#confirm-edit-message-button').click();
}

async function act(one) {
  await enter(one);
  await { say, regenerate, edit }[one.do](one);
  takes[one.turn] = (takes[one.turn] || 0) + 1;
  if (one.cut) {
    await happened(`cut/${one.turn}`);
    await page.locator('button[aria-label="Stop"]').first().click();
  } else {
    await happened(`end/${one.turn}/${takes[one.turn]}`);
  }
  idleSince = Date.now();
  // The address holds the chat's id once the first message is sent.
  await page.waitForURL(/\/c\//, { timeout: 10000 });
  urls[one.session] = page.url();
  await sleep(300);
}

async function main() {
  const browser = await chromium.launch({ executablePath: lane.chromium, args: FLAGS });
  page = await (await browser.newContext({ viewport: { width: 1280, height: 1000 } })).newPage();
  await load(lane.page);
  const welcome = page.getByRole('button', { name: "Okay, Let's Go!" });
  try {
    await welcome.waitFor({ timeout: 4000 });
    await welcome.click();
  } catch (error) {
    console.log('no welcome');
  }
  fs.writeFileSync(lane.ready, 'ready\n');
  while (!fs.existsSync(lane.go)) await sleep(50);
  idleSince = Date.now();
  for (const one of lane.acts) {
    try {
      await act(one);
    } catch (error) {
      await page.screenshot({ path: `${lane.ready}.png` });
      throw error;
    }
    console.log(one.do, one.session, one.turn);
  }
  for (;;) {
    const state = await (await fetch(`${lane.upstream}/night/state?client=page`)).json();
    if (state.open === 0 && state.quiet_s > 3) break;
    await sleep(200);
  }
  await browser.close();
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
