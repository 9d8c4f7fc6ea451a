# ruff: noqa: RUF001
"""Texts of many kinds, on which tokenizers differ most: languages, code, data, noise and runs."""

from __future__ import annotations

import base64
import json
import random
import uuid

LANGUAGES = {
    "english": "The committee decided that refunds over two hundred euros need the approval of a second person, "
    "except for goods which arrived damaged. Nobody had asked the warehouse, and it showed.",
    "chat": "hi!! can u pls check order #4417?? it says 'delivered' but i've got nothing :( thx",
    "german": "Die Rückerstattung der Versandkosten ist grundsätzlich ausgeschlossen, sofern der Käufer die Ware nicht "
    "innerhalb von vierzehn Tagen zurückschickt; Geschwindigkeitsbegrenzungen gelten ausnahmslos.",
    "french": "L'équipe a décidé qu'il fallait vérifier chaque remboursement à la main, même s'il était déjà approuvé.",
    "spanish": "¿Podría usted comprobar si el paquete llegó ayer? Según el repartidor, la señora ya lo había recogido.",
    "polish": "Zażółć gęślą jaźń, powiedział urzędnik, a następnie wyjaśnił, dlaczego przesyłka nie dotarła na czas.",
    "turkish": "Müşteri, siparişinin neden geciktiğini öğrenmek istiyordu; görevli ise bilgi veremeyeceğini söyledi.",
    "vietnamese": "Khách hàng muốn biết vì sao đơn hàng đến muộn, nhưng nhân viên không thể trả lời ngay được.",
    "russian": "Покупатель хотел узнать, почему посылка задержалась, однако сотрудник не смог ответить на вопрос.",
    "greek": "Ο πελάτης ήθελε να μάθει γιατί καθυστέρησε η παραγγελία, αλλά κανείς δεν μπορούσε να του απαντήσει.",
    "hebrew": "הלקוח רצה לדעת מדוע ההזמנה התעכבה, אך העובד לא הצליח להשיב על השאלה שלו באותו היום.",
    "arabic": "أراد العميل أن يعرف سبب تأخر الطلب، لكن الموظف لم يستطع الإجابة عن سؤاله في ذلك اليوم.",
    "hindi": "ग्राहक जानना चाहता था कि ऑर्डर देर से क्यों आया, लेकिन कर्मचारी उस दिन जवाब नहीं दे सका।",
    "tamil": "வாடிக்கையாளர் தனது பொருள் ஏன் தாமதமாக வந்தது என்பதை அறிய விரும்பினார்.",
    "thai": "ลูกค้าต้องการทราบว่าทำไมสินค้าจึงมาถึงช้า แต่พนักงานไม่สามารถตอบคำถามได้ในวันนั้น",
    "georgian": "მომხმარებელს სურდა გაეგო, რატომ დააგვიანდა შეკვეთას, მაგრამ პასუხი ვერ მიიღო.",
    "amharic": "ደንበኛው ትዕዛዙ ለምን እንደዘገየ ማወቅ ፈልጎ ነበር፤ ነገር ግን ሠራተኛው መልስ መስጠት አልቻለም።",
    "chinese": "客户想知道订单为什么迟到,但是工作人员当天无法回答这个问题。仓库里没有人接电话,所以大家只好等到第二天。",
    "classical": "學而時習之,不亦說乎?有朋自遠方來,不亦樂乎?人不知而不慍,不亦君子乎?龘靐齉爩麤",
    "japanese": "お客様は注文がなぜ遅れたのかを知りたがっていましたが、担当者はその日のうちに答えられませんでした。",
    "korean": "고객은 주문이 왜 늦었는지 알고 싶어 했지만 직원은 그날 질문에 대답할 수 없었습니다.",
    "emoji": "🎉🎉 shipped!! 👩‍👩‍👧‍👦 ❤️‍🔥 🏳️‍🌈 👍🏽👍🏿 🇩🇪🇯🇵 ✅ ☕️ 🤷🏻‍♀️ 🧑‍🚀",
    "symbols": "∀x∈ℝ: ⌈x⌉ ≥ x ∧ ∑ᵢ₌₁ⁿ i = n(n+1)/2 → ∞ … “quotes” – — « » ½ ¼ µ ° § ¶ ™ ← ↑ → ↓ ╔══╗ ║▓▒░║ ╚══╝",
}

CODE = '''
def _place(self, tenant: str, frame_id: bytes, *, limit: int = 64) -> dict[str, list[tuple[int, str]]]:
    """Where a frame lives, or nothing."""
    for row in self._connection.execute("SELECT stream, version FROM frames WHERE id=?", (frame_id,)):
        if row[1] >= limit and not (row[0].startswith("session/") or row[0] == "main"):
            raise RuntimeError(f"{row[0]!r} is at {row[1]:,}, which is over {limit}")
    return {name: [(i, x.strip()) for i, x in enumerate(xs)] for name, xs in self._rows.items()}
'''

SCRIPT = """!function(e,t){"use strict";var n=e.document,r=Object.create(null);for(let i=0;i<t.length;i++){
  if(t[i]&&t[i].nodeType===1){r[t[i].id]={x:t[i].offsetLeft,y:t[i].offsetTop,w:t[i].clientWidth>>>0}}}
  return n.querySelectorAll('div.item > span[data-k="v"]').forEach((a)=>a.remove())||r}(window,[...arguments]);"""

MARKDOWN = (
    "# Title\n\n| a | b |\n|---|---|\n| 1 | **two** |\n\n- [ ] item `x = 1`\n\n> quoted\n\n```py\nprint(1)\n```\n"
)

RUNS = (" ", "\n", "\t", "a", "A", "=", "-", "_", "*", ".", "0", "7", "#", "/", "\u00a0", "ä", "的", "😀", "\0", "\x7f")


def samples(seed: int = 7) -> dict[str, str]:
    """Every kind, by name."""
    r = random.Random(seed)
    record = {
        "id": str(uuid.UUID(int=r.getrandbits(128))),
        "price": 1299.99,
        "at": "2026-03-04T05:06:07.089Z",
        "tags": ["a", "b_c", "refund-2"],
        "nested": {"ok": True, "none": None, "n": [1, 22, 333, 4444, 55555, -0.000123]},
    }
    found = dict(LANGUAGES)
    found |= {
        "python": CODE * 3,
        "script": SCRIPT,
        "json": json.dumps([record] * 5),
        "json indented": json.dumps([record] * 3, indent=4),
        "yaml": "service:\n" + "".join(f"        - name: web-{i}\n          port: {8000 + i}\n" for i in range(20)),
        "csv": "\n".join(f"{i},{r.random():.6f},{r.randrange(10**9)},north-{i % 7}" for i in range(40)),
        "numbers": " ".join(str(r.getrandbits(64)) for _ in range(40)),
        "digits": "".join(r.choices("0123456789", k=400)),
        "base64": base64.b64encode(r.randbytes(600)).decode(),
        "hex": r.randbytes(400).hex(),
        "uuids": "\n".join(str(uuid.UUID(int=r.getrandbits(128))) for _ in range(20)),
        "letters": "".join(r.choices("abcdefghijklmnopqrstuvwxyz", k=500)),
        "capitals": "".join(r.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=500)),
        "shouting": LANGUAGES["english"].upper(),
        "one letter each": " ".join("the quick brown fox jumps over it".replace(" ", "")),
        "log": "\n".join(
            f"2026-11-0{1 + i % 9} 12:{i:02}:07,{i:03} WARN [pool-{i}] c.e.Http - 503 in {i * 7}ms" for i in range(20)
        ),
        "markdown": MARKDOWN * 3,
        "url": "https://example.com/a/b?q=x%20y&utm_source=mail&t=eyJhbGciOiJIUzI1NiJ9.e30.ZRrHA1JJJW8opsbCGfG_HACGpVUMN_a9IV7pAx_Zmeo",
        "special": "<|endoftext|><|im_start|>system<|im_sep|>hi<|im_end|><s>[INST]</s><start_of_turn>\n\nHuman: x",
        "controls": "".join(map(chr, range(32))) * 4,
        "any characters": "".join(
            chr(r.choice([r.randrange(0xD800), r.randrange(0xE000, 0x110000)])) for _ in range(200)
        ),
        "latin letters": "".join(chr(r.randrange(0xC0, 0x250)) for _ in range(200)),
        "rare ideographs": "".join(chr(r.randrange(0x20000, 0x2A6D0)) for _ in range(60)),
        "spaced code": "if (x)\n{\n" + "".join(" " * (4 * d) + "while (y)\n" for d in range(12)) + "}\n",
        "table": "\n".join(f"{name:<24}{i:>12}" for i, name in enumerate(("alpha", "beta", "gamma") * 6)),
    }
    found |= {f"run of {run!r}": run * 500 for run in RUNS}
    found |= {
        f"short {i}": text for i, text in enumerate(("a", "Hi", "ok.", " ", "\n", "7", "ä", "的", "😀", "{}", "()"))
    }
    return found
