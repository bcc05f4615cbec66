"""Files in WebShop's published format, made of our own products, in any number: for the loader, the protocols of human goals and the measurement of memory."""
import json
from shopping_grpo.core import Draws


def item(p, asin):
    "A record of `items_shuffle.json`."
    low, high = p.price_range
    groups = {a: [dict(value=v, price=price / 100) for v, price in {o.value: o.price or p.price for o in p.options if o.axis == a}.items()] for a in p.axes}
    return dict(asin=asin, name=p.title, pricing=f'${low / 100:.2f}' + (f'${high / 100:.2f}' if high > low else ''), product_category=' › '.join(p.category), category=p.category[0], query=p.category[-1],
        small_description=list(p.bullets), full_description=p.description, customization_options=groups or '', images=['x.jpg'], brand=p.brand, page=1)


def attributes(p):
    "An entry of `items_ins_v2.json`."
    facts = list(dict.fromkeys([*p.features, *(x for _, x, _ in p.attributes)]))[:8] or ['plain']
    return dict(attributes=facts, instruction=f"Find me {', '.join(facts[:2])} {p.category[-1]}", instruction_attributes=facts[:2])


def human(p, asin, n):
    "What people asked for, an entry of `items_human_ins.json`."
    facts = attributes(p)['attributes']
    return [dict(asin=asin, instruction=f'i would like {facts[k % len(facts)]} {p.category[-1]}, number {k}.', instruction_attributes=facts[k % len(facts):][:1], options=[], instruction_options=[o.value for o in p.options[k:k + 1]]) for k in range(n)]


def write_files(folder, catalog, n, asked, each=2):
    "`n` products, `asked` of them with `each` human instructions; returns the three paths. One product is in memory at a time."
    paths = [folder/f for f in ('items_shuffle.json', 'items_ins_v2.json', 'items_human_ins.json')]
    items, ins, people = (open(p, 'w', encoding='utf-8') for p in paths)
    d, which = Draws(0, 'files'), {i * n // asked for i in range(asked)}
    for file, sign in ((items, '['), (ins, '{'), (people, '{')): file.write(sign)
    first = True
    for k in range(n):
        p, asin, sep = catalog.at(k % len(catalog)), f'B{k:09d}', '' if k == 0 else ', '
        extra = {} if k < len(catalog) else dict(title=p.title + ' ' + ' '.join(d.sample(p.description.split() or ['x'], 3)), category=(*p.category[:-1], f'{p.category[-1]} {k // 3000}')) # leaves of about 120 products
        p = p._replace(**extra)
        items.write(sep + json.dumps(item(p, asin)))
        ins.write(f'{sep}{json.dumps(asin)}: {json.dumps(attributes(p))}')
        if k in which:
            people.write(f"{'' if first else ', '}{json.dumps(asin)}: {json.dumps(human(p, asin, each))}")
            first = False
    for file, sign in ((items, ']'), (ins, '}'), (people, '}')): file.write(sign); file.close()
    return paths
