# ruff: noqa: E501 (a template is one line, however long)
"""Plain facts, by topic: a definition that answers "what is ...?" and sentences that may follow in any order."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """`name` reads naturally after "what is", `about` after "about"; the definitions stand alone."""

    name: str
    about: str
    definitions: tuple[str, ...]
    facts: tuple[str, ...]


def topic(name: str, about: str, definitions: str, facts: str) -> Topic:
    """Both lists are written one sentence to a line."""
    return Topic(name, about, tuple(definitions.strip().split("\n")), tuple(facts.strip().split("\n")))


TOPICS = (
    topic(
        "a queue",
        "queues",
        """A queue is a line in which [whoever comes first is served first|the first to arrive is the first to leave].
A queue is a list with two ends: new items join at the back, and the next item is taken from the front.""",
        """New items join at the back of the queue.
The item that has waited longest is taken next.
When nothing is waiting, the queue is empty.
A queue is fair, because nobody can jump ahead.
If items arrive faster than they leave, the queue grows longer.
People at a bakery stand in a queue, and so do [ships in front of a harbour|letters at the post office].
In a priority queue, the most important item goes first.""",
    ),
    topic(
        "a cache",
        "caches",
        """A cache is a small, fast store that keeps [results that may be needed again|copies of things that were used lately].
A cache is a place close by where you keep what you will probably need again.""",
        """Looking into the cache is faster than doing the work again.
If the answer is in the cache, this is called a hit.
If the answer is not in the cache, this is called a miss.
A cache is always too small to keep everything.
When the cache is full, something old must make room for something new.
Often the item that has not been used for the longest time is removed first.
A cook who keeps salt next to the stove is using a kind of cache.""",
    ),
    topic(
        "a block",
        "blocks of memory",
        """A block is a piece of memory of a fixed size.
A block is a small box of memory, and every box has the same size and a number.""",
        """All blocks have the same size, so any free block will do.
A block table says which block holds which part of a text.
When a request is finished, its blocks are free again.
Free blocks wait in a queue until they are needed.
Two requests with the same beginning can share a block.
A block that somebody is still using must not be given away.
Memory in equal blocks has no holes that are too small to use.""",
    ),
    topic(
        "a token",
        "tokens",
        """A token is a small piece of text, such as a word or a part of a word.
A token is the unit in which a language model reads and writes.""",
        """Common words are one token, and rare words are several.
Each token has a number.
A language model reads tokens and chooses the next one.
The list of all tokens is called the vocabulary.
A tokenizer turns text into tokens and tokens into text.
Even a space or a comma can be part of a token.""",
    ),
    topic(
        "a scheduler",
        "schedulers",
        """A scheduler decides [who goes next|which work is done now and which work must wait].
A scheduler is the part of a system that shares the time among those who want it.""",
        """In every step the scheduler looks at the requests that are running, and then at those that are waiting.
There is a budget for each step, and the scheduler may not spend more.
If the memory is full, the scheduler may have to stop a request and start it again later.
A good scheduler keeps the machine busy and nobody waiting too long.
First come, first served is the simplest rule.
A harbour master is a scheduler too: there are many ships and only few places at the pier.""",
    ),
    topic(
        "a batch",
        "batches",
        """A batch is a group of things that are [done together|handled in one go].
A batch is what a baker puts into the oven at one time.""",
        """It takes almost the same time to bake ten loaves as to bake one.
Work that is done in a batch is cheaper for each piece.
A batch can be too large for the oven.
With continuous batching, a new request can join as soon as another one leaves.
Whoever comes too late must wait for the next batch.""",
    ),
    topic(
        "a language model",
        "language models",
        """A language model is a program that [guesses the next word of a text|reads a text and says which word is likely to come next].
A language model is a large table of numbers that has learned from many texts.""",
        """It writes one token at a time.
Each new token is added to the text, and then the model reads again.
A large model knows more, but it needs more memory and more time.
A small model can write simple stories.
A language model can be wrong, so it is wise to check what it says.
The temperature says how bold the choice of words may be.""",
    ),
    topic(
        "a lighthouse",
        "lighthouses",
        """A lighthouse is a tower with a bright light that shows ships the way at night.
A lighthouse is a tall building near the sea, with a lamp at the top.""",
        """Its light can be seen from many miles away.
The lens of a lighthouse bends the light into a narrow beam.
Every lighthouse has its own rhythm of flashes, so sailors know where they are.
The keeper cleans the glass and looks after the lamp.
Lighthouses stand on rocks, on islands and at the mouths of harbours.
In fog, a horn is used as well as the light.""",
    ),
    topic(
        "a tide",
        "the tides",
        """A tide is the slow rising and falling of the sea, [twice a day|about every twelve hours].
The tide is the movement of the sea up and down the shore.""",
        """The tides are made by the pull of the moon and the sun.
At high tide the water is deep, and large ships can enter the harbour.
At low tide you can walk on the sand and find shells.
When the sun and the moon pull together, the tide is higher than usual.
Sailors keep a table of the tides.""",
    ),
    topic(
        "the moon",
        "the moon",
        """The moon is a ball of rock that goes around the earth.
The moon is the nearest neighbour of the earth in space.""",
        """It takes about four weeks to go around the earth once.
The moon has no light of its own; it shines in the light of the sun.
We always see the same side of the moon.
When the moon is between us and the sun, we cannot see it, and this is called a new moon.
There is no wind on the moon, so footprints stay for a very long time.
The pull of the moon makes the tides.""",
    ),
    topic(
        "the sun",
        "the sun",
        """The sun is a star, and it is [the star closest to us|at the centre of the solar system].
The sun is a very hot ball of gas that gives us light and warmth.""",
        """The planets go around the sun.
Light needs about eight minutes to come from the sun to the earth.
Without the sun, nothing would grow.
The sun rises in the east and sets in the west.
The sun is so large that more than a million earths would fit into it.""",
    ),
    topic(
        "a planet",
        "the planets",
        """A planet is a large round body that goes around a star.
A planet is a world that moves around a sun.""",
        """There are eight planets in our solar system.
Mercury is the closest to the sun, and Neptune is the farthest away.
Jupiter is the largest planet.
Saturn has bright rings of ice and rock.
Mars looks red because there is rust in its soil.
Venus is the brightest of the planets in our sky.
The earth is the third planet from the sun.
A planet far from the sun needs a longer time for one turn around it.""",
    ),
    topic(
        "an orrery",
        "the orrery",
        """An orrery is a clockwork model of the solar system.
An orrery is a machine that shows how the planets move around the sun.""",
        """When you turn the crank, the planets begin to move.
Gears of different sizes make every planet keep its own time.
You can stop an orrery and look at it from every side.
You can turn it backward and see where the planets were.
An orrery does not hide its wheels.
The sun in the middle is often a lamp or a golden ball.""",
    ),
    topic(
        "a gear",
        "gears",
        """A gear is a wheel with teeth that turns another wheel.
A gear is a wheel that carries movement from one place to another.""",
        """A small gear turns faster than the large gear next to it.
Two gears that touch turn in opposite directions.
The number of teeth decides how fast a gear turns.
Clocks, mills and bicycles have gears.
If one tooth is missing, the whole machine may stop.
A drop of oil keeps the gears quiet.""",
    ),
    topic(
        "a clock",
        "clocks",
        """A clock is a machine that measures time.
A clock is a machine that counts equal moments and shows their sum with its hands.""",
        """The short hand shows the hours, and the long hand shows the minutes.
A pendulum swings with a steady beat.
A spring or a weight gives the clock its power.
Sixty seconds are one minute, and sixty minutes are one hour.
A clock that stands still is right twice a day.
Sailors needed good clocks to find out where they were.""",
    ),
    topic(
        "a compass",
        "the compass",
        """A compass is a tool whose needle points to the north.
A compass is a small instrument that shows the direction.""",
        """The needle is a small magnet, and the earth is a large one.
With a map and a compass you can find your way.
The four main directions are north, east, south and west.
Iron near the compass can disturb the needle.
Sailors used the compass long before there were engines.""",
    ),
    topic(
        "a map",
        "maps",
        """A map is a picture of a place as a bird would see it.
A map is a drawing that shows where things are.""",
        """On most maps the north is at the top.
The scale says how long a mile is on the paper.
Blue stands for water, and green often stands for woods.
No map can show everything, so the mapmaker must choose.
An old map tells us what people knew at that time.""",
    ),
    topic(
        "a telescope",
        "telescopes",
        """A telescope is a tool that makes things far away look near.
A telescope is a tube with lenses or mirrors that collects light from far away.""",
        """With a telescope you can see the mountains of the moon.
A large mirror collects more light than a small one.
Telescopes often stand on mountains, where the air is clear.
Through a small telescope you can see the rings of Saturn.
Looking through a telescope means looking into the past, because light takes time to travel.""",
    ),
    topic(
        "a harbour",
        "harbours",
        """A harbour is a place where ships are safe from the waves.
A harbour is a place at the coast where ships come in, unload and rest.""",
        """Cranes lift the heavy boxes from the ships.
A wall of stones keeps the waves out.
The harbour master decides where each ship may lie.
In a harbour you can hear gulls, ropes and many languages.
Pilots help large ships to find the way in.
A harbour that is full must let ships wait outside.""",
    ),
    topic(
        "a ship",
        "ships",
        """A ship is a large boat that can cross the sea.
A ship is a vessel that carries people or goods over the water.""",
        """The front of a ship is called the bow, and the back is called the stern.
A ship floats because it pushes water aside.
Sails catch the wind and move the ship.
The captain is responsible for everybody on board.
Each ship has a name, and many have a flag.
Long ago ships were built of wood; today most of them are built of steel.""",
    ),
    topic(
        "rain",
        "the rain",
        """Rain is water that falls from the clouds in drops.
Rain is a part of the journey that water makes between the sea, the sky and the land.""",
        """The sun warms the sea, and water rises into the air.
High above, the air is cold, and the water becomes small drops again.
Many small drops make a cloud.
Rivers carry the rain back to the sea.
Plants need rain, and so do wells.
After the rain you may see a rainbow.""",
    ),
    topic(
        "the wind",
        "the wind",
        """Wind is air that moves from one place to another.
The wind is moving air; it blows because the sun warms some places more than others.""",
        """Warm air rises, and cold air flows in below it.
By day the wind often blows from the sea to the land.
A strong wind makes high waves.
Windmills use the wind to grind grain or to make electricity.
Sailors can sail against the wind by going from side to side.""",
    ),
    topic(
        "a garden",
        "gardens",
        """A garden is a piece of land where people grow plants.
A garden is a place where flowers, herbs or vegetables are grown with care.""",
        """Plants need water, light and good soil.
Seeds are sown in the spring, and most fruit is picked in the autumn.
Bees carry pollen from flower to flower.
Weeds grow faster than anything else.
Old leaves turn into good soil.
A gardener must be patient, because nothing grows faster if you pull it.""",
    ),
    topic(
        "a bee",
        "bees",
        """A bee is an insect that collects nectar and makes honey.
A bee is a small insect that lives with many others in a hive.""",
        """Each hive has one queen.
Bees dance to tell each other where the flowers are.
In winter the bees stay close together to keep warm.
Without bees there would be fewer apples.
A bee visits hundreds of flowers in one day.""",
    ),
    topic(
        "bread",
        "bread",
        """Bread is a food made of flour, water, salt and yeast.
Bread is a food that is made of dough and baked in an oven.""",
        """The yeast makes the dough rise.
Bakers get up at night so that the bread is fresh in the morning.
Dough must be kneaded, and then it must rest.
The crust of good bread is brown and hard.
People have baked bread for thousands of years.""",
    ),
    topic(
        "a market",
        "markets",
        """A market is a place where people buy and sell things.
A market is a place where those who have something meet those who need it.""",
        """When many people want a thing and there is little of it, the price goes up.
A fair price is one that both sides accept.
In the market you can find fruit, fish, cloth and news.
The best apples are sold early in the morning.
Coins are easier to carry than sheep.""",
    ),
    topic(
        "a library",
        "libraries",
        """A library is a house full of books that anyone may read.
A library is a place where books are kept, sorted and lent.""",
        """The librarian knows where each book stands.
A catalogue tells you the shelf and the number.
Whoever borrows a book must bring it back.
Libraries are quiet, so that people can think.
The oldest libraries kept their texts on clay.""",
    ),
    topic(
        "a bridge",
        "bridges",
        """A bridge is a road that crosses a river or a valley.
A bridge is a structure that joins two sides.""",
        """An arch carries its load to both ends.
Some bridges hang from long cables.
A bridge must move a little in the wind, or it would break.
Bridges can be built of wood, stone, iron or concrete.
Some bridges can be opened to let ships pass.""",
    ),
    topic(
        "a computer",
        "computers",
        """A computer is a machine that follows instructions, one after another, very fast.
A computer is a machine that stores numbers and calculates with them.""",
        """A program is a list of instructions.
The memory keeps the numbers that are needed now.
A fast computer can do billions of steps in one second.
A computer does exactly what it is told, even if it was told the wrong thing.
Many small computers can work on one large problem together.""",
    ),
    topic(
        "music",
        "music",
        """Music is sound that is ordered in time.
Music is the art of putting sounds and silence together.""",
        """A melody is a row of notes that belong together.
Rhythm is what makes people tap their feet.
A violin has four strings.
Short strings make high notes, and long strings make low notes.
Musicians who play together must listen to each other.""",
    ),
    topic(
        "glass",
        "glass",
        """Glass is a hard and clear material that is made of melted sand.
Glass is sand that was so hot that it became a clear liquid and then cooled down.""",
        """A glassblower shapes the glass while it is hot.
Glass can be cut, coloured and polished.
A lens is a piece of glass that bends the light.
Glass breaks easily, but it does not rust.
Windows let the light in and keep the wind out.""",
    ),
    topic(
        "snow",
        "snow",
        """Snow is frozen water that falls from the clouds in small white crystals.
Snow is made of many small crystals of ice.""",
        """Every snowflake has six sides.
Snow covers the fields like a blanket and protects the plants.
Fresh snow makes everything quiet.
When the snow melts in the spring, the rivers rise.
Children build snowmen, and adults clear the roads.""",
    ),
    topic(
        "a star",
        "the stars",
        """A star is a huge ball of hot gas that gives off its own light.
A star is a sun that is very far away.""",
        """Red stars are cooler than blue stars.
The light of a star may be thousands of years old when we see it.
The North Star always stands in the north.
People have given names to groups of stars, such as the Great Bear.
On a clear night you can see about three thousand stars.
The sun is the only star that we can see by day.""",
    ),
    topic(
        "a river",
        "rivers",
        """A river is a stream of water that flows from the hills to the sea.
A river is water on its way from the mountains to the sea.""",
        """A river begins at a spring or a lake.
Where the land is flat, a river flows slowly and makes wide turns.
Towns were often built beside a river.
Mills used the power of the water.
Where the river meets the sea, the water is half salt and half fresh.""",
    ),
    topic(
        "electricity",
        "electricity",
        """Electricity is the movement of very small particles through a wire.
Electricity is a form of energy that can travel through a wire.""",
        """Lightning is electricity too.
A battery stores energy for later.
Copper is a good conductor, and glass is not.
A lamp turns electricity into light.
Water and electricity do not go well together.""",
    ),
    topic(
        "an experiment",
        "experiments",
        """An experiment is a question that is put to nature.
An experiment is a careful test of an idea.""",
        """Change only one thing at a time, and keep the rest the same.
Write down what you see, and not what you hoped to see.
An experiment that fails can teach us something.
Others should be able to repeat it and find the same.
Measure twice before you say that something is faster.""",
    ),
    topic(
        "the KV cache",
        "the KV cache",
        """The KV cache is the memory in which a language model keeps what it has already read.
The KV cache is a store of keys and values, one pair for each token and each layer.""",
        """Without it, the model would have to read the whole text again for each new token.
It grows by one entry with every token.
It is kept in blocks of equal size.
When there are no free blocks, a request must wait.
When a request is finished, its part of the KV cache is given back.""",
    ),
    topic(
        "paged attention",
        "paged attention",
        """Paged attention is a way to keep the memory of a language model in small blocks that need not lie side by side.
Paged attention means that the keys and values of a text are spread over many blocks, and a table says where they are.""",
        """Each request has a block table, like the list of pages in a book.
No memory is lost between the blocks.
Requests that begin with the same words can share their blocks.
A new block is taken only when the last one is full.""",
    ),
    topic(
        "prefix caching",
        "prefix caching",
        """Prefix caching means that the beginning of a text is computed once and used again.
Prefix caching is a way to save work when many requests begin with the same words.""",
        """Each full block has a hash that stands for all the tokens up to its end.
If the hash is known, the block is used again and nothing is computed.
The last token is always computed, because the model needs it to go on.
Old blocks are given away when memory is needed.""",
    ),
    topic(
        "prefill",
        "prefill and decode",
        """Prefill is the first part of a request, in which the model reads the whole prompt.
Prefill is the reading of the prompt; after it comes the decode, which writes one token at a time.""",
        """The prefill needs much calculation, and the decode needs much memory traffic.
A long prompt can be read in several chunks.
In one step some requests may be in prefill and others in decode.
The time until the first token depends on the prefill.""",
    ),
    topic(
        "speculative decoding",
        "speculative decoding",
        """Speculative decoding means that a small model guesses some tokens and a large model checks them all at once.
Speculative decoding is a way to write several tokens in one step.""",
        """A guess that is right saves a step.
A guess that is wrong is thrown away, and the large model says what comes instead.
The result is the same as without guessing, only faster.
Easy texts are easy to guess.""",
    ),
    topic(
        "guided decoding",
        "guided decoding",
        """Guided decoding means that the model may only choose tokens that fit a given form.
Guided decoding is a way to make sure that an answer follows the rules of a grammar.""",
        """Before each choice, the tokens that do not fit are crossed out.
A small machine with states remembers which part of the form has been written.
It can make sure that a JSON object is closed at the end.
The model still decides what it says, but not in which form.""",
    ),
    topic(
        "preemption",
        "preemption",
        """Preemption means that a request is stopped so that another one can go on.
Preemption happens when the memory is full and somebody must give way.""",
        """The blocks of the stopped request become free.
Later the request is started again, and what was lost is computed once more.
The request that came last is the first to give way.
If it happens often, there is too little memory.""",
    ),
)

CAPITALS = (
    "France:Paris|Germany:Berlin|Italy:Rome|Spain:Madrid|Portugal:Lisbon|Japan:Tokyo|China:Beijing|India:New Delhi|"
    "Egypt:Cairo|Kenya:Nairobi|Canada:Ottawa|Mexico:Mexico City|Brazil:Brasilia|Argentina:Buenos Aires|Peru:Lima|"
    "Greece:Athens|Norway:Oslo|Sweden:Stockholm|Denmark:Copenhagen|Finland:Helsinki|Poland:Warsaw|Austria:Vienna|"
    "Ireland:Dublin|Iceland:Reykjavik|Turkey:Ankara|Australia:Canberra|Cuba:Havana|Chile:Santiago|Ghana:Accra|"
    "the United States:Washington|England:London|Scotland:Edinburgh|Hungary:Budapest|Belgium:Brussels"
).split("|")
