"""A corpus of English and Chinese that is learnt in minutes and can be solved only by looking around.

Word tables and five small grammars write every pair, so we know what each translation has to find out:

    pointing    the animal did not cross the street because it was too tired
                这只动物没有穿过这条街道，因为这只动物太累了
                the animal did not cross the street because it was too wide
                这只动物没有穿过这条街道，因为这条街道太宽了
                What does "it" stand for? Only the last word tells. The Chinese repeats the noun
                instead of saying 它, so that the model's answer can be read off its output.
    deeds       she bought a book yesterday                   她昨天买了一本书
                she did not buy a book                        她没有买书
                Time before the verb, a measure word for each noun; 了 for what happened, 没有 for what did not.
    present     i love you                                    我爱你
                you love me                                   你爱我
                Word order alone: a model without positions cannot tell these two apart.
    opinions    apple is delicious                            苹果很好吃
                apple is famous                               苹果公司很出名
                One token, two senses: its neighbours decide, as they decide whether delicious
                is 好吃, good to eat, or 好喝, good to drink.
    clauses     he ate an apple and bought shares of apple    他吃了一个苹果，还买了苹果公司的股票
                Both senses in one sentence, each with its own neighbours.

English is in lower case, neither side ends in a full stop, and an English sentence has exactly one
translation. There are 5,600 pairs, at most 13 English tokens and 23 Chinese characters long.
"""

import hashlib
from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product

Pair = namedtuple("Pair", "source target")  # two texts

PEOPLE = {"i": "我", "you": "你", "he": "他", "she": "她", "we": "我们", "they": "他们", "the teacher": "这位老师",
          "the doctor": "这位医生", "the child": "这个孩子", "my mother": "我妈妈", "my friend": "我的朋友"}
AS_OBJECT = {"i": "me", "he": "him", "she": "her", "we": "us", "they": "them"}
# A Chinese noun stands here behind its measure word, one character: 一 + 本书 is "a book", 这 + 本书 "the book".
ANIMALS = {"animal": "只动物", "dog": "只狗", "cat": "只猫", "horse": "匹马", "cow": "头牛", "sheep": "只羊",
           "rabbit": "只兔子", "elephant": "头大象", "tiger": "只老虎", "monkey": "只猴子"}
ANIMAL_STATES = {"tired": "累", "hungry": "饿", "thirsty": "渴", "sleepy": "困", "lazy": "懒", "afraid": "害怕",
                 "nervous": "紧张", "fat": "胖", "shy": "害羞", "sad": "伤心"}
PLACE_STATES = {"wide": "宽", "long": "长", "narrow": "窄", "deep": "深", "dark": "暗", "muddy": "泥泞", "dry": "干燥",
                "crowded": "拥挤"}
PLACES = {  # what one does there, what it can be
    "street": ("条街道", "cross leave", "wide crowded dark"), "road": ("条马路", "cross leave", "wide crowded muddy"),
    "river": ("条河", "cross leave", "wide deep"), "bridge": ("座桥", "cross leave", "long narrow"),
    "park": ("个公园", "cross enter leave", "crowded dark"), "forest": ("片森林", "cross enter leave", "dark muddy"),
    "field": ("片田野", "cross enter leave", "muddy dry"), "cave": ("个山洞", "enter leave", "deep narrow dark"),
    "tunnel": ("条隧道", "enter leave", "long narrow dark"), "valley": ("个山谷", "cross enter leave", "deep narrow dry")}
MOVES = {"cross": ("crossed", "穿过"), "enter": ("entered", "进入"), "leave": ("left", "离开")}
CROSSING = {("cross", "river"): "渡过", ("cross", "bridge"): "走过"}  # over water, and on foot
THINGS = {"book": "本书", "letter": "封信", "newspaper": "份报纸", "map": "张地图", "table": "张桌子", "chair": "把椅子",
          "car": "辆车", "hat": "顶帽子", "coat": "件大衣", "umbrella": "把雨伞", "flower": "朵花", "door": "扇门",
          "window": "扇窗户", "cat": "只猫", "horse": "匹马", "apple": "个苹果", "banana": "根香蕉", "cake": "个蛋糕",
          "fish": "条鱼", "bowl of rice": "碗米饭", "cup of tea": "杯茶", "cup of coffee": "杯咖啡", "cup of milk": "杯牛奶"}
VERBS = {  # and what one does it to
    "buy": ("bought", "买", "book,newspaper,map,table,chair,car,hat,coat,umbrella,flower,cat,horse,apple,banana,cake"),
    "sell": ("sold", "卖", "book,newspaper,table,chair,car,hat,coat,umbrella,flower,horse,apple,banana,cake,fish"),
    "draw": ("drew", "画", "map,flower,door,window,cat,horse,apple,banana,fish"), "open": ("opened", "打开", "door,window"),
    "borrow": ("borrowed", "借", "book,map,table,chair,car,hat,coat,umbrella"), "write": ("wrote", "写", "book,letter"),
    "make": ("made", "做", "table,chair,hat,coat,cake"), "read": ("read", "读", "book,letter,newspaper"),
    "eat": ("ate", "吃", "apple,banana,cake,fish,bowl of rice"),
    "drink": ("drank", "喝", "cup of tea,cup of coffee,cup of milk")}
PAST_TIMES = {"": "", " yesterday": "昨天", " this morning": "今天早上", " last night": "昨晚"}
FUTURE_TIMES = {"": "", " tomorrow": "明天", " tonight": "今晚", " next week": "下周"}
FEELINGS = {"love": "爱", "like": "喜欢", "respect": "尊敬", "trust": "信任", "help": "帮助", "thank": "感谢"}
COMPANIES = {"apple": "苹果公司", "google": "谷歌公司", "toyota": "丰田公司"}
COMPANY_STATES = {"rich": "富有", "famous": "出名", "powerful": "强大", "successful": "成功"}
FOODS = {"apple": ("eat", "苹果", "delicious sweet fresh"), "banana": ("eat", "香蕉", "delicious sweet fresh"),
         "cake": ("eat", "蛋糕", "delicious sweet fresh"), "rice": ("eat", "米饭", "delicious"),
         "fish": ("eat", "鱼", "delicious fresh"), "tea": ("drink", "茶", "delicious sweet"),
         "coffee": ("drink", "咖啡", "delicious sweet"), "milk": ("drink", "牛奶", "delicious sweet fresh")}
FOOD_STATES = {"sweet": "甜", "fresh": "新鲜"}  # and delicious: 好 + 吃 or 好 + 喝
TELLING = {"said": "说", "thought": "觉得", "knew": "知道", "heard": "听说"}

# The examples at the top of the page. The corpus has them all; no training sentence is among them.
SHOWCASE = ("the animal did not cross the street because it was too tired",
            "the animal did not cross the street because it was too wide", "she bought a book yesterday",
            "she did not buy a book", "i love you", "you love me", "apple is delicious", "apple is famous",
            "he ate an apple and bought shares of apple")
# Words that never meet in a training sentence, though each meets many others there.
WITHHELD = ("animal street", "dog bridge", "sheep cave", "elephant forest", "horse tired", "rabbit hungry",
            "monkey shy", "tunnel narrow", "valley deep", "borrow coat", "sell hat", "draw horse", "buy cake",
            "coffee tonight", "she us", "they me", "doctor love", "mother apple", "knew famous", "heard sweet")

BASE = {past: base for base, (past, *_) in (MOVES | VERBS).items()}  # bought: buy
BASE |= {base + "s": base for base in (*FEELINGS, "work", "eat", "drink")}

Deed = namedtuple("Deed", "past base thing verb done undone")  # bought, buy, a book, 买, 一本书; 书 if it was not
Split = namedtuple("Split", "training held_out unseen")


def _things() -> Iterator[Deed]:
    for base, (past, verb, things) in VERBS.items():
        for thing in things.split(","):
            noun, article = THINGS[thing], "an" if thing[0] in "aeiou" else "a"
            yield Deed(past, base, f"{article} {thing}", verb, "一" + noun, noun[1:])
            yield Deed(past, base, f"the {thing}", verb, "这" + noun, "这" + noun)


def _pointing(to_animal: bool) -> Iterator[tuple[str, str]]:
    for (animal, animal_zh), (place, (place_zh, moves, place_states)) in product(ANIMALS.items(), PLACES.items()):
        who, where = "这" + animal_zh, "这" + place_zh
        of_place = {state: PLACE_STATES[state] for state in place_states.split()}
        it, states = (who, ANIMAL_STATES) if to_animal else (where, of_place)
        for move, (state, state_zh) in product(moves.split(), states.items()):
            past, verb = MOVES[move][0], CROSSING.get((move, place), MOVES[move][1])
            went = f"the {animal} {past} the {place}", f"{who}{verb}了{where}"
            stayed = f"the {animal} did not {move} the {place}", f"{who}没有{verb}{where}"
            hindered, free = (went, stayed) if move == "leave" else (stayed, went)
            yield f"{hindered[0]} because it was too {state}", f"{hindered[1]}，因为{it}太{state_zh}了"
            yield f"{free[0]} because it was not {state}", f"{free[1]}，因为{it}不{state_zh}"
            contrary = (f"the {animal} was {state} but it still {past} the {place}" if to_animal else
                        f"the {place} was {state} but the {animal} still {past} it")
            yield contrary, f"{it}很{state_zh}，但是{who}还是{verb}了{where}"


def _deeds(deeds: Iterable[Deed]) -> Iterator[tuple[str, str]]:
    for (who, who_zh), (past, base, thing, verb, done, undone) in product(PEOPLE.items(), deeds):
        for when, when_zh in PAST_TIMES.items():
            yield f"{who} {past} {thing}{when}", f"{who_zh}{when_zh}{verb}了{done}"
            yield f"{who} did not {base} {thing}{when}", f"{who_zh}{when_zh}没有{verb}{undone}"
        for when, when_zh in FUTURE_TIMES.items():
            yield f"{who} will {base} {thing}{when}", f"{who_zh}{when_zh}会{verb}{done}"
            yield f"{who} will not {base} {thing}{when}", f"{who_zh}{when_zh}不会{verb}{undone}"


def _present(predicates: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    for (who, who_zh), (verb, rest, chinese) in product(PEOPLE.items(), predicates):
        if chinese.rstrip("们").endswith(who_zh.rstrip("们")):
            continue  # i love me: English says myself
        do, form = ("do", verb) if who in ("i", "you", "we", "they") else ("does", verb + "s")
        yield f"{who} {form} {rest}", f"{who_zh}{chinese}"
        yield f"{who} {do} not {verb} {rest}", f"{who_zh}不{chinese}"
        yield f"{who} will {verb} {rest}", f"{who_zh}会{chinese}"
        yield f"{who} will not {verb} {rest}", f"{who_zh}不会{chinese}"


def _opinions() -> Iterator[tuple[str, str]]:
    facts = [(name, name_zh, *state) for (name, name_zh), state in product(COMPANIES.items(), COMPANY_STATES.items())]
    facts += [(name, name_zh, state, FOOD_STATES.get(state, "好" + VERBS[verb][1]))
              for name, (verb, name_zh, states) in FOODS.items() for state in states.split()]
    tellers = [(f"{who} {told} that ", who_zh + told_zh)
               for (who, who_zh), (told, told_zh) in product(PEOPLE.items(), TELLING.items())]
    for (teller, teller_zh), (name, name_zh, state, state_zh) in product([("", ""), *tellers], facts):
        yield f"{teller}{name} is {state}", f"{teller_zh}{name_zh}很{state_zh}"
        yield f"{teller}{name} is not {state}", f"{teller_zh}{name_zh}不{state_zh}"


def _clauses(firsts: Iterable[Deed], seconds: Iterable[Deed]) -> Iterator[tuple[str, str]]:
    for (who, who_zh), *two in product(PEOPLE.items(), firsts, seconds):
        for one, other in (two, two[::-1]):
            begin, begin_zh = f"{who} {one.past} {one.thing}", f"{who_zh}{one.verb}了{one.done}"
            yield f"{begin} and {other.past} {other.thing}", f"{begin_zh}，还{other.verb}了{other.done}"
            yield f"{begin} but did not {other.base} {other.thing}", f"{begin_zh}，但是没有{other.verb}{other.undone}"


@cache
def generate_corpus() -> tuple[Pair, ...]:
    """All pairs, the same in the same order everywhere. A grammar is thinned to the sentences whose SHA-256
    comes first: as good as drawing lots, and no other version of a random generator can change the draw."""
    def by_hash(pair):
        return pair[0] not in SHOWCASE, hashlib.sha256(pair[0].encode()).digest()

    things = list(_things())
    meals = [deed for deed in things if deed.base in ("eat", "drink")]
    fruit = [deed for deed in things if deed.thing.endswith(("apple", "banana"))]
    errands = [deed for deed in things if deed.base in ("read", "write", "borrow", "open")]
    shares = [Deed(VERBS[base][0], base, f"shares of {name}", VERBS[base][1], name_zh + "的股票", name_zh + "的股票")
              for base, (name, name_zh) in product(("buy", "sell"), COMPANIES.items())]
    feelings = [(feel, AS_OBJECT.get(whom, whom), feel_zh + whom_zh)
                for (feel, feel_zh), (whom, whom_zh) in product(FEELINGS.items(), PEOPLE.items())]
    habits = [("work", f"for {name}", f"在{name_zh}工作") for name, name_zh in COMPANIES.items()]
    habits += [(verb, name, VERBS[verb][1] + name_zh) for name, (verb, name_zh, _) in FOODS.items()]
    grammars = ((900, _pointing(True)), (900, _pointing(False)), (1100, _deeds(things)), (300, _deeds(shares)),
                (800, _present(feelings)), (350, _present(habits)), (650, _opinions()),
                (350, _clauses(fruit, shares)), (250, _clauses(meals, errands)))
    chosen = [Pair(*pair) for count, grammar in grammars for pair in sorted(grammar, key=by_hash)[:count]]
    return tuple(sorted(chosen, key=by_hash))


def is_withheld(source: str) -> bool:
    """Does the sentence hold two words that training keeps apart? All forms of a verb are one word."""
    words = {BASE.get(word, word) for word in source.split()}
    return any(words.issuperset(pair.split()) for pair in WITHHELD)


def split_corpus(pairs: Sequence[Pair]) -> Split:
    """Three tuples of pairs that share no sentence.

    unseen    every sentence with two words that training keeps apart: was the grammar learnt, or the sentences?
    held_out  every twelfth of the others, and what is left of SHOWCASE: new sentences of familiar pairs of words
    training  the rest
    """
    unseen = tuple(pair for pair in pairs if is_withheld(pair.source))
    others = [pair for pair in pairs if not is_withheld(pair.source)]
    held_out = {pair: None for n, pair in enumerate(others) if n % 12 == 0 or pair.source in SHOWCASE}
    return Split(tuple(pair for pair in others if pair not in held_out), tuple(held_out), unseen)
