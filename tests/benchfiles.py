"""A corpus in ShoppingBench's published format around published instructions: a document for each gold product that has what is asked of it, and decoys."""
import gzip, json
from shopping_grpo.core import Draws


def _price(r, share):
    "Pesos: within the bounds of a reward, else the share of its task."
    for ends in (b for o in r.get('price') or () for b in o.values()):
        low, high = ends[0], ends[1]
        return float(high if low is None else low + 1 if high is None else (low + high) / 2)
    return share


def document(id, shop, title, price, attributes={}, skus={}, service=(), description=''):
    return dict(id=id, contents=title, product=dict(product_id=id, shop_id=shop, brand='', category='Home > Things', title=title, short_description='', description=description, specification='k:v', price=price, sold_count=int(id[-2:]),
        sku_options=skus, attributes=attributes, main_image_url='x', product_url='x', service=list(service)))


def shares(i):
    "What the products of a voucher task cost, so that they sum up to the published price, in pesos."
    n, cents = len(i.rewards), i.deal.price_before if i.deal else 10_000
    return [(cents // n + (k < cents % n)) / 100 for k in range(n)]


def corpus(instructions, decoys=2):
    "The documents; a product that several instructions name has what all of them ask for, as far as that goes."
    out, d = {}, Draws(0, 'corpus')
    for k, i in enumerate(sorted(instructions, key=lambda i: i.deal is None)): # prices of voucher tasks have to sum up
        if i.intent == 'knowledge': out.setdefault(i.gold[0], dict(id=i.gold[0], contents='', product=i.rewards[0])); continue
        for r, share in zip(i.rewards, shares(i)):
            skus = {'1': {k: str(v) for o in r.get('sku_options') or () for k, v in o.items()}} if r.get('sku_options') else {}
            facts = {k: list(v) for o in r.get('attributes') or () for k, v in o.items()}
            if (known := out.get(r['product_id'], {}).get('product')): known.update(attributes=known['attributes'] | facts, sku_options=known['sku_options'] or skus, service=[*dict.fromkeys([*known['service'], *r.get('service', ())])]); continue
            out[r['product_id']] = document(r['product_id'], f'{500 + k}', r['title'][0], _price(r, share), facts, skus, r.get('service') or ())
            for n in range(decoys):
                id = f'{9_000_000_000 + len(out)}'
                out[id] = document(id, f'{500 + d.one(len(instructions))}', ' '.join(d.sample(r['title'][0].split(), 3)) or 'thing', (100 + d.one(100_000)) / 100, {a: v[:1] for a, v in facts.items() if d.one(2)}, skus if d.one(2) else {'1': {'color': 'odd'}, '2': {'size': 'm'}}, ['COD'])
    return list(out.values())


def write_corpus(path, documents):
    "JSON lines, packed where the name says so."
    data = ''.join(json.dumps(x, ensure_ascii=False) + '\n' for x in documents).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == '.gz' else data)
    return path
