"""The small world of the corpus: who lives there, what they own, where they go, and what the weather does."""

import random
from dataclasses import dataclass

WOMEN = (
    "Mara Ada Ines Lena Nora Tilda Greta Rosa Clara Hana Yuki Amina Leila Priya Zara Sofia Elsa Ruth Edith Mabel "
    "Ida Freya Olga Carmen Lucia Anna Maria Emma Kate Alice Grace Joan Ella Lily Nadia Farah Mei Chloe Vera Dora"
).split()
MEN = (
    "Tom Otto Ben Emil Jonas Hugo Felix Oskar Arlo Milo Kenji Omar Samir Ravi Ivan Pavel Luis Diego Marco Paul "
    "Peter Jack Henry Walter Edmund Silas Amos Finn Leo Max Noah Theo Victor Anton Bruno Carl David George Hans John"
).split()
FAMILY_NAMES = (
    "Finch Marsh Harrow Lund Okoro Tanaka Silva Moreau Keller Novak Hale Thorne Brook Ashby Pell Vance Rivers Stone "
    "Fisher Baker Weaver Penrose Quill Larkin Fontaine Rossi Ibarra Kaur Mensah Olsen"
).split()
SHIPS = (
    "Marigold|Swift|Northern Star|Grey Heron|Patience|Evening Bell|Blue Lantern|Kingfisher|Hope|Silver Pear|Old Anna|"
    "Winter Rose|Sparrow|Second Wind|Honest Penny|Far Harbour|Copper Moon|Little Bear|Long Summer|Saltbird"
).split("|")
TOWNS = (
    "Saltmarsh|Port Ember|Gull Bay|Stonequay|Lanternport|Amberwick|Low Harbour|Brightsand|Thistle Cove|Oldwater|"
    "Northmere|Windle|Fairholm|Copperhill|Seven Bridges"
).split("|")
ISLANDS = "Heron Island|the Bell Rocks|Long Island|Moon Island|the Twin Rocks|Apple Island|Goat Island".split("|")
ROLES = (
    "lighthouse keeper|baker|clockmaker|gardener|harbour master|sailor|fisher|astronomer|teacher|ferry pilot|carpenter|"
    "librarian|doctor|postman|beekeeper|mapmaker|tailor|glassblower|cook|shipbuilder|painter|potter|weaver|blacksmith|"
    "bookseller|musician|miller|shepherd|locksmith|printer"
).split("|")
PLACES = (
    "at the harbour|in the market|at the lighthouse|in the observatory|in the garden|in the library|at the bakery|"
    "in the workshop|on the pier|on the hill|by the river|in the square|at the mill|on the beach|in the old tower|"
    "by the bridge|in the boathouse|at the school|in the orchard|by the well"
).split("|")
PLACE_NAMES = (
    "the harbour|the market|the lighthouse|the observatory|the garden|the library|the bakery|the workshop|the pier|"
    "the mill|the beach|the old tower|the bridge|the boathouse|the school|the orchard|the well|the square"
).split("|")
THINGS = (
    "lantern|compass|telescope|key|map|clock|kettle|net|rope|violin|book|letter|coat|bell|basket|ring|knife|flute|"
    "lamp|mirror|spoon|hammer|box|bottle|kite|drum|notebook|watch|chair|bicycle|cup|scarf|umbrella|whistle|chest"
).split("|")
QUALITIES = (
    "small|old|heavy|bright|wooden|silver|brass|copper|blue|red|green|broken|beautiful|strange|plain|golden|dusty|"
    "painted|simple|fine|curious|little|black|white|yellow"
).split("|")
ANIMALS = "cat|dog|goat|owl|fox|donkey|gull|duck|mouse|horse|crow|hen|rabbit|turtle|hedgehog".split("|")
ANIMAL_NAMES = "Pepper|Button|Biscuit|Admiral|Smoke|Clover|Pebble|Captain|Toast|Nutmeg|Ginger|Domino".split("|")
FOODS = (
    "bread|soup|apple cake|fish stew|honey cakes|cheese|plum jam|porridge|pancakes|roasted chestnuts|lemon tea|"
    "pea soup|ginger biscuits|potato pie|pears|warm milk"
).split("|")
GOODS = (
    "apples|salt|timber|wool|lamp oil|oranges|copper|tea|barrels of flour|glass|paper|olives|spices|coal|silk|seeds|"
    "bricks|rope|honey|dried fish"
).split("|")
PLANTS = "roses|beans|sunflowers|lavender|tomatoes|tulips|pumpkins|lettuce|peas|carrots|thyme|poppies".split("|")
TREES = "apple tree|pear tree|old oak|willow|cherry tree|walnut tree|tall pine|fig tree".split("|")
PLANETS = "Mercury Venus Mars Jupiter Saturn Uranus Neptune".split()
COLOURS = "red blue green yellow white black grey orange purple brown".split()
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
SKIES = (
    "the sky was clear|the sun was shining|it was raining|a thick fog lay over the water|the wind was cold|"
    "snow was falling|grey clouds hung over the roofs|the air was warm and still|a light rain was falling|"
    "the wind came from the west|the stars were out|the moon was full|the sea was calm|the sea was rough|"
    "frost covered the windows"
).split("|")
TIMES = (
    "one morning|one evening|one afternoon|one night|on a Monday|on a Friday|on the first day of spring|"
    "in the middle of winter|late in the summer|early in the autumn|on market day|before sunrise|just after noon|"
    "on the longest day of the year|at midnight|last week|a long time ago|on a quiet Sunday"
).split("|")
FEELINGS = "happy|tired|proud|curious|worried|calm|surprised|hopeful|nervous|cheerful|sad|grateful".split("|")
TRAITS = "patient|clever|kind|stubborn|shy|brave|careful|cheerful|quiet|honest|curious|wise|gentle|busy".split("|")
SKILLS = (
    "read the stars|tie a bowline|mend a net|bake bread|repair a clock|play the violin|sail a small boat|draw a map|"
    "keep bees|blow glass|whistle like a bird|count in another language|plant a garden|sharpen a knife|row a boat|"
    "build a kite|paint a portrait|print a book|climb a mast|read the clouds"
).split("|")


@dataclass(frozen=True, slots=True)
class Person:
    """Someone with a name and the pronouns that go with it."""

    name: str
    woman: bool
    role: str

    def names(self, prefix: str) -> dict[str, str]:
        """Keys for a template: `A`, `Ahe`, `Ahim`, `Ahis`, `Aself`, `Arole`."""
        he, him, his, own = ("she", "her", "her", "herself") if self.woman else ("he", "him", "his", "himself")
        return {
            prefix: self.name,
            prefix + "he": he,
            prefix + "him": him,
            prefix + "his": his,
            prefix + "self": own,
            prefix + "role": self.role,
        }


def person(rng: random.Random, taken: tuple[str, ...] = ()) -> Person:
    """A person whose name is not among those `taken`."""
    woman = rng.random() < 0.5
    name = rng.choice([name for name in (WOMEN if woman else MEN) if name not in taken])
    role = rng.choice(ROLES)
    return Person(name, woman, role.replace("postman", "postwoman") if woman else role)


def cast(rng: random.Random) -> dict[str, str]:
    """Everything one text keeps referring to: three people, a thing, a ship, an animal, a place, the weather."""
    first = person(rng)
    second = person(rng, (first.name,))
    third = person(rng, (first.name, second.name))
    place, other_place = rng.sample(range(len(PLACE_NAMES)), 2)
    good, other_good = rng.sample(GOODS, 2)
    animal = rng.choice(ANIMALS)
    count = rng.randint(2, 9)
    return {
        **first.names("A"),
        **second.names("B"),
        **third.names("C"),
        "Afamily": rng.choice(FAMILY_NAMES),
        "quality": rng.choice(QUALITIES),
        "thing": rng.choice(THINGS),
        "ship": rng.choice(SHIPS),
        "town": rng.choice(TOWNS),
        "island": rng.choice(ISLANDS),
        "place": PLACE_NAMES[place],
        "place2": PLACE_NAMES[other_place],
        "in_place": rng.choice(PLACES),
        "animal": animal,
        "pet": rng.choice(ANIMAL_NAMES),
        "food": rng.choice(FOODS),
        "good": good,
        "good2": other_good,
        "plant": rng.choice(PLANTS),
        "tree": rng.choice(TREES),
        "planet": rng.choice(PLANETS),
        "colour": rng.choice(COLOURS),
        "count": NUMBERS[count],
        "count1": NUMBERS[count + 1],
        "year": str(rng.randint(1700, 2030)),
        "years": NUMBERS[rng.randint(2, 12)],
        "sky": rng.choice(SKIES),
        "time": rng.choice(TIMES),
        "feeling": rng.choice(FEELINGS),
        "trait": rng.choice(TRAITS),
        "trait2": rng.choice(TRAITS),
        "skill": rng.choice(SKILLS),
    }
