"""Dialects: what is rendered reads back the same, and nothing that a model may write raises or is mended."""
import json
import pytest
from shopping_grpo.core import Draws, canonical_json
from shopping_grpo.dialect import DIALECTS, OpenAI, dialect, split_thought
from shopping_grpo.core import PolicyError
from shopping_grpo.env import Message, Tool, ToolCall, arguments, problem

STRING, INTEGER, NUMBER, BOOLEAN = ({'type': t, 'description': ''} for t in ('string', 'integer', 'number', 'boolean'))
def _tool(name, required=(), **properties): return Tool(name, f'{name}.', dict(type='object', properties=properties, required=list(required), additionalProperties=False))
TOOLS = {t.name: t for t in (_tool('search', ['query'], query=STRING), _tool('buy_now'), _tool('cart', ['id', 'n'], id=STRING, n=INTEGER, gift=BOOLEAN, most=NUMBER), _tool('page', n=INTEGER, note=STRING))}
PIECES = ['red', '茶', ' ', '\n', '[', ']', '{', '}', '"', "'", '\\', '<', '>', '/', '|', ':', '🙂', '\u2028', '\t', '7', 'null', '<tool_call>', '</tool_call>', '<function=search>', '</function>',
          '<parameter=query>', '</parameter>', '<think>', '</think>', 'Action: ', 'search[', 'buy_now[]', '{"a": 1}', '<|im_end|>', '```', '\x00', '\r\n', '']
TEXT = list(DIALECTS)[1:]


def words(d, most=8): return ''.join(d.pick(PIECES) for _ in range(d.one(most)))

def value(d, schema):
    kind = schema['type']
    return words(d) if kind == 'string' else d.one(2000) - 1000 if kind == 'integer' else bool(d.one(2)) if kind == 'boolean' else (d.one(2000) - 1000) / 8

def calls(n, *path): # well-formed calls with hostile values
    for i in range(n):
        d = Draws(0, *path, i)
        t = d.pick(list(TOOLS.values()))
        yield ToolCall(t.name, {k: value(d, p) for k, p in t.parameters['properties'].items() if k in t.parameters['required'] or d.one(2)}, 'call_1')


@pytest.mark.parametrize('name', DIALECTS)
def test_round_trip(name):
    "M2: 500 calls a dialect, with tags, brackets, quotes and control characters in their values."
    said = 'Let me see.'
    for call in calls(500, 'round', name):
        assert problem(TOOLS, call.name, call.args) == ''
        message = json.loads(json.dumps(dialect(name).render(call, TOOLS, said)))
        back = dialect(name).parse(message, TOOLS)
        assert (back.action.name, back.action.args, back.calls, back.said) == (call.name, call.args, 1, said), message


@pytest.mark.parametrize('name', TEXT)
def test_a_cut_call_is_never_mended(name):
    "Every prefix of a call is no call, a malformed one, or the whole of it; it is never a different call that could be carried out."
    for call in calls(60, 'cut', name):
        text = dialect(name).render(call, TOOLS)['content']
        for end in range(len(text)):
            found = dialect(name).parse({'content': text[:end]}, TOOLS).action
            if isinstance(found, Message): continue
            args = arguments(found)
            assert isinstance(args, str) or (found.name, args) == (call.name, call.args) or problem(TOOLS, found.name, args), (text[:end], found)


def nonsense(d): # a turn of a model that has gone wrong
    name = d.pick(TEXT)
    turn = ' '.join(dialect(d.pick(TEXT)).render(c, TOOLS)['content'] for c in calls(1 + d.one(3), 'bad', name, d.one(10**6)))
    for _ in range(d.one(4)):
        at = d.one(len(turn) + 1)
        turn = d.pick([turn[:at], turn[at:], turn[:at] + words(d) + turn[at:], turn + turn[:at], turn.replace('"', "'"), turn.replace('arguments', 'argumants'), turn.replace(':', ': NaN,', 1), turn.replace('}', '', 1)])
    return turn

def check(found):
    assert (found.calls > 0) == isinstance(found.action, ToolCall) and isinstance(found.said, str) and isinstance(found.thought, str)
    canonical_json([found.action.args, found.action.name] if found.calls else found.action.text)
    if found.calls: assert isinstance(args := arguments(found.action), str) or isinstance(problem(TOOLS, found.action.name, args), str)


@pytest.mark.parametrize('name', DIALECTS)
def test_nonsense_never_raises(name, n=1000):
    for i in range(n):
        d = Draws(1, name, i)
        check(dialect(name).parse({'content': nonsense(d)}, TOOLS))
        check(dialect(name).parse({'content': words(d, 30)}, TOOLS))


@pytest.mark.slow
@pytest.mark.parametrize('name', DIALECTS)
def test_nonsense_never_raises_at_full_size(name): test_nonsense_never_raises(name, 10_000)


@pytest.mark.parametrize('name', DIALECTS)
@pytest.mark.parametrize('text', ['[' * 100_000, '{"a":' * 50_000, 'search[' * 150_000, 'buy_now[]' * 30_000, '<tool_call>' * 100_000, '<think>' * 150_000, '</think>' * 150_000, '<function=' * 100_000, '<parameter=' * 100_000,
    '<function=search>' + '<parameter=query>' * 50_000, ' ' * 1_000_000, 'a' * 1_000_000, '<tool_call>' + ' ' * 1_000_000, '<tool_call>' + '{}' * 50_000, '<tool_call>{"name": ' + '"' * 500_000, '"name"' + ' ' * 500_000, '\n' * 1_000_000,
    'Action:' + ' ' * 500_000, '<tool_call>{"name": "search", "arguments": {"query": ' + '9' * 100_000 + '}}', '[' * 900 + ']' * 900, '\ud83d search[\ud83d]'], ids=lambda t: t[:12].strip() or 'blank')
def test_huge_turns(name, text):
    "Megabytes, nesting and half a surrogate: read in one pass, so no bound on seconds is needed to see a hang."
    found = dialect(name).parse({'content': text}, TOOLS)
    assert found.calls >= 0 and (found.calls > 0) == isinstance(found.action, ToolCall)


@pytest.mark.parametrize('message', [{}, {'content': None}, {'content': 7}, {'content': [1, {'text': 2}, {'text': 'x'}]}, {'tool_calls': 'x'}, {'tool_calls': {}}, {'tool_calls': 5}, {'tool_calls': [None, 1, [], 'x']},
    {'tool_calls': [{'function': None}]}, {'tool_calls': [{'function': {}}]}, {'tool_calls': [{'function': {'name': None, 'arguments': None}}]}, {'tool_calls': [{'id': 4, 'function': {'name': ['x'], 'arguments': [1]}}]},
    {'tool_calls': [{'function': {'name': 'search', 'arguments': '{"query": NaN}'}}]}, {'tool_calls': [{'function': {'name': 'search', 'arguments': '{"query": "a"} tail'}}]}, {'reasoning_content': 3, 'content': '</think>'}], ids=str)
@pytest.mark.parametrize('name', DIALECTS)
def test_odd_messages(name, message): check(dialect(name).parse(message, TOOLS))


def test_a_malformed_native_call_can_be_sent_back():
    "Servers refuse a history with broken arguments or names; the record keeps the model's own in the step."
    found = OpenAI().parse({'tool_calls': [{'id': 'a', 'function': {'name': 'sea rch/茶', 'arguments': '{"query": "re'}}]}, TOOLS).action
    assert found.args == '{"query": "re'
    sent = OpenAI().render(found, TOOLS)['tool_calls'][0]['function']
    assert json.loads(sent['arguments']) == {} and sent['name'].isascii() and '/' not in sent['name'] and ' ' not in sent['name']


@pytest.mark.parametrize('name', TEXT)
def test_several_calls_and_thoughts(name):
    "The first call counts, the rest are counted, and what is thought is no call."
    one, two, three = (dialect(name).write(c, TOOLS) for c in (ToolCall('search', {'query': 'tea'}), ToolCall('buy_now', {}), ToolCall('page', {'n': 2, 'note': 'x'})))
    found = dialect(name).parse({'content': f'First this.\n{one}\n{two}\n{three}'}, TOOLS)
    assert found.calls == 3 and found.action == ToolCall('search', {'query': 'tea'}) and found.said.startswith('First this.')
    for thought in (f'<think>{two}</think>{one}', f'{two}</think>\n{one}', f'<think>a</think>{one}<think>{two}', f'<think>a<think>{two}</think>{one}'):
        found = dialect(name).parse({'content': thought}, TOOLS)
        assert found.calls == 1 and found.action.args == {'query': 'tea'} and found.thought
    assert dialect(name).parse({'content': f'<think>{one}'}, TOOLS).action == Message('')
    assert dialect(name).parse({'content': one, 'reasoning_content': two}, TOOLS).thought == two


@pytest.mark.parametrize('lang', ['zh', 'en'])
@pytest.mark.parametrize('name', TEXT)
def test_instructions_name_every_tool(name, lang):
    "A model that knows only the system prompt can know each tool and parameter, and the example shows the form that is read."
    text = dialect(name).instruct(TOOLS, lang)
    assert all(t.name in text and all(p in text for p in t.parameters['properties']) for t in TOOLS.values())
    assert dialect('openai').instruct(TOOLS, lang) == ''


def test_unknown_dialect():
    with pytest.raises(PolicyError, match="dialect 'morse' is unknown; there are openai, hermes, qwen, action"): dialect('morse')
