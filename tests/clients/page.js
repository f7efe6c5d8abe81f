// Plays what it is told at Open WebUI's page in headless Chromium.
// usage: node page.js ADDRESS CHROMIUM   (playwright-core on NODE_PATH)
// One command a line of standard input, one answer a line of standard output, both JSON.
'use strict';
const { chromium } = require('playwright-core');
const readline = require('readline');

const [address, executable] = process.argv.slice(2);
const FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync'];
const LIMIT_MS = 60000;
let page;

async function load(url) {
  await page.goto(url, { waitUntil: 'load' });
  await page.waitForSelector('#chat-input', { timeout: LIMIT_MS });
}

const told = {
  // A new chat.
  async begin({ model }) {
    await load(`${address}/?models=${encodeURIComponent(model)}`);
  },
  // The address holds the chat's id once the first message is sent.
  async say({ text }) {
    await page.click('#chat-input');
    const lines = text.split('\n');
    for (let number = 0; number < lines.length; number++) {
      if (number) await page.keyboard.press('Shift+Enter');
      await page.keyboard.insertText(lines[number]);
    }
    await page.locator('#send-message-button:not([disabled])').waitFor({ timeout: LIMIT_MS });
    await page.keyboard.press('Enter');
    await page.waitForURL(/\/c\//, { timeout: LIMIT_MS });
    return page.url().split('/c/')[1];
  },
  async attach({ path }) {
    const uploads = (reply) => reply.url().includes('/api/v1/files');
    const answered = page.waitForResponse(uploads, { timeout: LIMIT_MS });
    await page.locator('input[type=file]:not(#camera-input)').first().setInputFiles(path);
    return (await answered).status();
  },
  async stop() {
    await page.locator('button[aria-label="Stop"]').first().click({ timeout: LIMIT_MS });
  },
  async regenerate() {
    await page.locator('button[aria-label="Regenerate"]').last().click({ timeout: LIMIT_MS });
    const again = page.getByText('Try Again', { exact: true });
    await again.last().click({ timeout: 3000 }).catch(() => null);
  },
  // Waits until the page shows the text, in whatever element.
  async shows({ text }) {
    await page.getByText(text).last().waitFor({ timeout: LIMIT_MS });
  },
  async picture({ path }) {
    await page.screenshot({ path });
  },
};

async function main() {
  // A signal ends this process at once, and its group with it.
  const handled = { handleSIGINT: false, handleSIGTERM: false, handleSIGHUP: false };
  const browser = await chromium.launch({ executablePath: executable, args: FLAGS, ...handled });
  page = await (await browser.newContext({ viewport: { width: 1280, height: 1000 } })).newPage();
  // The welcome comes over the page some time after the first load.
  const welcome = page.getByRole('button', { name: "Okay, Let's Go!" });
  await page.addLocatorHandler(welcome, (button) => button.click());
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { tell, ...given } = JSON.parse(line);
    const answer = await told[tell](given).then(
      (value) => ({ value: value ?? null }), (error) => ({ error: String(error) }));
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  await browser.close();
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
