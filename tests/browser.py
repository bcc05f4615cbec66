"A real Chromium for the tests of pages."
import json, re, shutil, subprocess, time, urllib.error, urllib.request
import pytest


class Browser:
    "Chromium by the WebDriver protocol, https://www.w3.org/TR/webdriver2."
    KEYS = dict(right='\ue014', left='\ue012', down='\ue015', up='\ue013', enter='\ue007', escape='\ue00c', tab='\ue004', home='\ue011', end='\ue010', space=' ')
    FLAGS = '--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync --window-size=1280,900'.split()

    def __init__(self, profile):
        for _ in range(5): # a port may be taken between the choice and the binding
            self.driver = subprocess.Popen([shutil.which('chromedriver'), '--port=0'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if port := next((m[1] for line in self.driver.stdout if (m := re.search(r'successfully on port (\d+)', line))), None): break
            self.driver.wait()
        self.url = f'http://127.0.0.1:{port}'
        options = dict(binary=shutil.which('chromium'), args=[*self.FLAGS, f'--user-data-dir={profile}'])
        asked = {'browserName': 'chrome', 'goog:chromeOptions': options, 'goog:loggingPrefs': {'browser': 'ALL', 'performance': 'ALL'}}
        self.url += '/session/' + self.send('/session', capabilities=dict(alwaysMatch=asked))['sessionId']

    def send(self, path, method='POST', **body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if method == 'POST' else None, {'Content-Type': 'application/json'}, method=method)
        try: return json.load(urllib.request.urlopen(request, timeout=60))['value']
        except urllib.error.HTTPError as e: raise AssertionError(e.read().decode()[:500]) from e

    def js(self, script, *args): return self.send('/execute/sync', script=script, args=args)
    def log(self, kind): return self.send('/se/log', type=kind)
    def emulate(self, command, **parameters): self.send('/goog/cdp/execute', cmd=f'Emulation.{command}', params=parameters)
    def media(self, **features): self.emulate('setEmulatedMedia', features=[dict(name=k.replace('_', '-'), value=v) for k, v in features.items()])
    def texts(self, selector): return self.js('return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)', selector)
    def text(self, selector): return self.texts(selector)[0]

    def until(self, script, *args):
        for _ in range(200):
            if value := self.js(f'return {script}', *args): return value
            time.sleep(.05)
        raise AssertionError(f'never true: {script}')

    def open(self, page, address=''): # page: a file, or an address
        self.send('/url', url='about:blank')
        self.send('/url', url=(page if isinstance(page, str) else page.as_uri()) + address)
        self.until('document.documentElement.dataset.ready')

    def click(self, selector): self.press(self.send('/element', using='css selector', value=selector))
    def press(self, element): self.send(f'/element/{next(iter(element.values()))}/click') # as `js` returns it
    def type(self, element, text): self.send(f'/element/{next(iter(element.values()))}/value', text=text)

    def keys(self, *names):
        actions = [dict(type=t, value=self.KEYS.get(n, n)) for n in names for t in ('keyDown', 'keyUp')]
        self.send('/actions', actions=[dict(type='key', id='keys', actions=actions)])

    def choose(self, selector, value):
        self.js("const e = document.querySelector(arguments[0]); e.value = arguments[1]; for (const t of ['input', 'change']) e.dispatchEvent(new Event(t, {bubbles: true}))", selector, value)

    def close(self):
        self.send('', 'DELETE')
        self.driver.terminate(); self.driver.wait()


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    if not (shutil.which('chromium') and shutil.which('chromedriver')): pytest.skip('chromium and chromedriver are not installed; on Debian: apt-get install chromium chromium-driver')
    b = Browser(tmp_path_factory.mktemp('profile'))
    yield b
    b.close()
