# ruff: noqa: E501 (a template is one line, however long)
"""The plots: what happens, beat by beat, with several ways to tell each beat."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plot:
    """`beats[i]` holds the ways to tell beat i; from beat `companion_from` on, {B} is on the scene and may speak."""

    titles: tuple[str, ...]
    summaries: tuple[str, ...]
    companion_from: int
    beats: tuple[tuple[str, ...], ...]


PLOTS = (
    Plot(
        ("{A} and the Lost Thing", "the missing {thing}", "where is the {thing}?"),
        ("{A} lost a {quality} {thing}, and {B} helped {Ahim} find it.", "{B} found the {thing} that {A} had lost."),
        1,
        (
            (
                "that day {A} [noticed|saw|found] that {Ahis} {quality} {thing} was [gone|missing].",
                "{A} reached for {Ahis} {quality} {thing}, but it was not there.",
                "{A} had lost {Ahis} {quality} {thing}, and [it was the only one {Ahe} had|{Ahe} needed it badly].",
            ),
            (
                '{Ahe} asked {B} the {Brole} for help. "[when did you see it last|where did you have it last]?" asked {B}.',
                '{B}, a {Brole} and an old friend, came to help. "we will find your {thing}," said {B}.',
                '"have you seen my {thing}?" {Ahe} asked {B} the {Brole}. {B} had not, but {Bhe} [offered to help|began to look at once].',
            ),
            (
                "they looked {in_place}, and then they looked near {place}. they found [nothing but dust|an old shoe|a nest of mice|{count} buttons], but no {thing}.",
                "first they searched {place}. then they searched {place2}. the {thing} was not [there|in either].",
                "they [looked under the table|opened every drawer|turned over every stone], and they asked everyone [they met|in {town}].",
            ),
            (
                "at last {B} [saw something shine|heard a small sound|had an idea]. the {thing} was [under the {tree}|in the pocket of an old coat|behind a barrel|on a high shelf] all the time.",
                "then {pet} the {animal} began to dig by {place}, and there was the {thing}.",
                "in the end it was {B} who found the {thing}, [hidden in a basket|lying in the grass|behind the door] near {place2}.",
            ),
            (
                "{A} [thanked {B} and held the {thing} tight|was so glad that {Ahe} laughed out loud|promised to take better care of it].",
                '"thank you," said {A}. "without you i would never have found it."',
            ),
        ),
    ),
    Plot(
        ("the night of the storm", "a light for the {ship}", "the storm"),
        (
            "during a storm, {A} kept a light burning, and the {ship} came home safely.",
            "{A} and {B} guided the {ship} through a storm with a lamp.",
        ),
        2,
        (
            (
                "that night a storm came [from the north|over the sea|faster than anyone expected]. the waves were as high as houses.",
                "toward evening the wind grew stronger, and soon the whole sea was white with foam.",
                "the barometer had been falling all day, and at night the storm broke.",
            ),
            (
                "far out on the water, {A} saw [a small light|the lights of a ship|a red rocket]. it was the {ship}, [loaded with|carrying] {good}.",
                "the {ship} was still out there, somewhere between {island} and the harbour.",
            ),
            (
                '{B} the {Brole} came running. "[the great lamp has gone out|the lamp will not burn|there is no oil left]!" {Bhe} cried.',
                'then the lamp of the lighthouse went dark. "[quick|hurry], we must light it again," said {B} the {Brole}.',
            ),
            (
                "together they [carried oil up the long stairs|cleaned the glass|turned the great lens by hand|lit every lantern they could find]. {A} counted {count} hundred steps.",
                "{A} [climbed the stairs two at a time|held the lantern high|did not stop to rest], and {B} came close behind.",
            ),
            (
                "the beam swept over the water once, twice, three times. slowly the {ship} turned [toward the harbour|away from the rocks].",
                "the captain of the {ship} saw the light and [steered between the rocks|turned the wheel in time|gave the order to turn].",
            ),
            (
                "by morning the {ship} lay safe at the pier, and the sea was [calm|quiet] again. the captain shook {Ahis} hand.",
                'when the sun rose, {count} sailors came ashore. "your light saved us," said the captain.',
            ),
        ),
    ),
    Plot(
        ("the clock that stopped", "{A} mends the clock", "a quarter past three"),
        (
            "the town clock stopped, and {A} repaired it with a [new gear|drop of oil|small spring].",
            "{A} and {B} repaired the clock of {town}.",
        ),
        1,
        (
            (
                "the great clock of {town} had stopped at [a quarter past three|ten minutes to six|half past nine].",
                "for the first time in {years} years the clock in the tower [was silent|did not strike].",
            ),
            (
                'the mayor sent {B} the {Brole} to ask for help. "can you mend it?" asked {B}. "i can try," said {A}.',
                '"without the clock nobody knows when to [open the market|ring the bell|eat lunch]," said {B} the {Brole}.',
            ),
            (
                "{A} opened the case and looked at the wheels. there were [large ones and small ones|{count} gears on one shaft], and each one turned the next.",
                "inside, the gears were [covered with dust|dry|as large as plates]. {A} turned them slowly, one after the other.",
            ),
            (
                "one small gear had lost a tooth. because it could not turn, [nothing else could turn|all the others stood still].",
                "a [feather|pebble|dead leaf] was stuck between two wheels. it was a small thing, but it had stopped the whole clock.",
            ),
            (
                "{A} [made a new gear out of brass|cleaned every wheel|put in a new spring], and {B} held the lamp. it took [{count} hours|all night|until noon].",
                "{B} handed {Ahim} the tools, and {A} worked [carefully|without a word|until the last wheel was in place].",
            ),
            (
                "then {A} gave the pendulum a push. tick, tock, tick, tock: the clock was going again.",
                "when {A} let go of the weight, the wheels began to turn, and the bell struck {count}. people in the square [cheered|looked up and laughed].",
            ),
        ),
    ),
    Plot(
        ("market day", "a good trade", "{A} goes to market"),
        ("{A} traded a {thing} for {good} at the market.", "at the market, {A} and {B} agreed on a fair trade."),
        1,
        (
            (
                "it was market day, and {A} wanted to buy {good}. {Ahe} had only {count} coins and a {quality} {thing}.",
                "{A} took a {quality} {thing} to the market, because {Ahe} needed {good} for the winter.",
            ),
            (
                '{B} the {Brole} had a stall full of {good} and {good2}. "how much for the {good}?" asked {A}. "{count1} coins," said {B}.',
                'at the stall of {B} the {Brole}, {A} stopped. "what does it cost?" {Ahe} asked. "more than you think," said {B}, "but less than it is worth."',
            ),
            (
                '"that is too much," said {A}. "i have {count} coins, and this {thing}."',
                "{A} counted {Ahis} coins twice. there were {count}, and that was not enough. so {Ahe} offered the {thing} as well.",
            ),
            (
                "{B} looked at the {quality} {thing} from all sides. {Bhe} [liked it more than {Bhe} wanted to show|had always wanted one|had lost one just like it].",
                "{B} picked up the {thing} and [turned it over|held it to the light|weighed it in {Bhis} hand].",
            ),
            (
                '"done," said {B}, and they shook hands. {A} carried the {good} home in a [basket|sack|cart].',
                "so they made a trade: the {thing} for a whole [basket|sack|cart] of {good}. both of them [thought they had won|were content|went home smiling].",
            ),
        ),
    ),
    Plot(
        ("a letter from far away", "the visitor", "the stranger in {town}"),
        (
            "a stranger named {B} brought {A} a letter from {C}.",
            "{B} came to {town} with a letter, and {A} decided to visit {C}.",
        ),
        0,
        (
            (
                "a stranger came to {town} that day. {Bhe} wore a {colour} coat and carried a {quality} {thing}.",
                "someone knocked at the door. it was a stranger in a {colour} coat, wet from the rain.",
            ),
            (
                '"my name is {B}," said the stranger. "i am a {Brole}, and i have a letter for you."',
                '"are you {A}?" asked the stranger. "i am {B}. i have come from {island} to bring you this letter."',
            ),
            (
                "the letter was from {C}, a {Crole} whom {A} had not seen for {years} years. {A} read it [twice|slowly|by the window].",
                "{A} knew the writing at once. it was the hand of {C}, {Ahis} oldest friend.",
            ),
            (
                '"dear {A}," it said, "[i am well|i live in a small house by the sea|i have built a garden], and i think of you often. come and see me before the winter."',
                '"dear {A}," wrote {C}, "do you remember the summer when we learned to {skill}? i have never forgotten it."',
            ),
            (
                "{A} gave {B} [a bowl of soup|some {food}|a chair by the fire], and they talked until [midnight|the candle went out].",
                "{B} stayed for supper and told {Ahim} about [the road|the sea|the mountains|the storms] on the way.",
            ),
            (
                "in the morning {A} packed a bag. [together they took the first boat|{Ahe} left with {B} on the {ship}], to see {C} again.",
                "the next day {A} wrote an answer, and {B} carried it back across the sea. {C} [smiled when it came|kept it in a drawer for the rest of {Chis} life].",
            ),
        ),
    ),
    Plot(
        ("the garden by the sea", "{A} plants {plant}", "a garden in the wind"),
        (
            "{A} planted {plant} by the sea, and with help from {B} they grew.",
            "{A} learned from {B} how to grow {plant}.",
        ),
        1,
        (
            (
                "{A} had always wanted a garden. so in the spring {Ahe} planted {plant} next to {place}.",
                "behind the house there was a small piece of land, and {A} decided to plant {plant} there.",
            ),
            (
                "but the soil was [poor|dry|full of stones], and after {count} weeks nothing had come up. {B} the {Brole} [stopped at the fence|came by to look].",
                '"nothing will grow here," people said. only {B} the {Brole} [thought otherwise|believed in it].',
            ),
            (
                '"plants need three things," said {B}: "water, light and time. you have given them water and light."',
                '"do not give up," said {B}. "the roots grow first, where you cannot see them."',
            ),
            (
                "every [morning|evening] {A} [carried water from the well|pulled the weeds|spoke to the plants], and {B} [built a small wall against the wind|brought good earth in a cart].",
                "they put [seaweed|old leaves|ashes] on the beds, and they built a fence to keep {pet} the {animal} out.",
            ),
            (
                "then, after a night of rain, the first green leaves appeared. by the summer the {plant} stood as high as {Ahis} [knees|shoulders].",
                "one day there was a spot of green, and the next day there were {count}. soon the whole garden was full of {plant}.",
            ),
            (
                "{A} gave the first {plant} to {B}, and [the bees came from all sides|people stopped at the fence to look].",
                '"you see," said {B}, "time was all they needed."',
            ),
        ),
    ),
    Plot(
        ("the orrery", "the clockwork planets", "how {A} built the planets"),
        (
            "{A} built an orrery, a clockwork model of the planets, and showed it to {B}.",
            "{B} learned from an orrery how the planets move.",
        ),
        1,
        (
            (
                "in the workshop of {A} stood a machine [of brass|under a cloth] that nobody was allowed to touch. it was an orrery, a clockwork model of the planets.",
                "for {years} years {A} had been building an orrery: a machine with a lamp for the sun and small balls for the planets.",
            ),
            (
                '{B} the {Brole} came to see it. "what does it do?" asked {B}. "turn the crank and you will see," said {A}.',
                'one day {A} let {B} the {Brole} turn the crank. "slowly," said {A}, "one turn is one day."',
            ),
            (
                "{B} turned the crank, and the earth went around the sun, and the moon went around the earth. {planet} moved [too|along its own ring|as well].",
                "the wheels began to turn. the small planets ran fast and the large ones ran slowly, and each kept to its own ring.",
            ),
            (
                '"why does {planet} [move like that|take its own time]?" asked {B}. "because every gear has its own number of teeth," said {A}. "count them, and you know the year."',
                '"so it is all gears," said {B}. "it is all gears," said {A}, "and every one of them can be seen."',
            ),
            (
                "they turned the crank until a whole year had passed. then they turned it backward, and [the year ran back to its beginning|everything happened again in reverse].",
                "when {B} stopped turning, everything stopped, and it could be looked at from all sides. that was what {Bhe} liked best.",
            ),
            (
                "from then on {B} came every evening, to learn how the machine worked, one wheel at a time.",
                '"now i understand the sky," said {B}, and {A} was [proud|glad|content].',
            ),
        ),
    ),
    Plot(
        ("the voyage to {island}", "to {island}", "{A} goes to sea"),
        (
            "{A} and {B} sailed the {ship} to {island} and found a {thing}.",
            "on a voyage to {island}, {A} found a {quality} {thing}.",
        ),
        0,
        (
            (
                "{A} and {B} had a plan. they wanted to sail to {island} on the {ship}, with {good} for {count} days.",
                "early in the morning {A} and {B} the {Brole} went aboard the {ship}. they were bound for {island}.",
            ),
            (
                "the first day the wind was [good|fair], and the {ship} ran before it like a horse. {A} stood at the [wheel|bow].",
                "they set the sails, and the town grew small behind them. soon there was nothing but water [on every side|and sky].",
            ),
            (
                "on the second day the wind dropped, and they had to [row|wait]. {B} [told stories|caught {count} fish|sang old songs] to pass the time.",
                "at night {A} steered by the stars, and {B} slept under a sail. {planet} stood low [in the west|over the sea].",
            ),
            (
                '"land!" cried {B}. and there it was: a thin line first, then hills, then a white beach.',
                "on the morning of the third day they saw the island. birds came out to meet them.",
            ),
            (
                "on the beach, half buried in the sand, {A} found a {quality} {thing}. nobody knew [whose it was|how it had come there].",
                "in a cave they found a {quality} {thing} and an old bottle with the name of an old ship on it.",
            ),
            (
                "they stayed for {count} days. then they filled their barrels with fresh water and sailed home, and {A} kept the {thing} on [a shelf|the table by the window].",
                "when they came home, half of {town} stood on the pier to hear about it.",
            ),
        ),
    ),
    Plot(
        ("the great race", "the boat race", "who will win?"),
        (
            "{A} won the race because {Ahe} was patient.",
            "{A} stopped to help {B} in the race, and in the end both of them won.",
        ),
        0,
        (
            (
                "every year there was a boat race from {place} to {island} and back. this year {A} wanted to win, and so did {B} the {Brole}.",
                '"i will win the race this year," said {B} the {Brole}. {A} said nothing, but {Ahe} began to [mend {Ahis} sails|paint {Ahis} boat].',
            ),
            (
                "when the bell rang, {count1} boats set off. {B} was the first, and {A} was [the last|only fourth].",
                "at the start {B} took the lead. {Bhis} boat was new and fast, and the boat of {A} was old.",
            ),
            (
                "near the rocks the wind changed. {A} had looked at the clouds and [was ready|had expected it], but {B} had not.",
                "halfway, {B} [broke an oar|lost {Bhis} sail|ran onto a sandbank] and could not go on. the other boats sailed past.",
            ),
            (
                'so {A} threw {Bhim} a rope. "take it," said {A}. "a race comes every year, but a friend does not."',
                '{A} turned back. "do you need help?" asked {A}. "i do," said {B}, and [{Bhis} face was red|it was hard to say].',
            ),
            (
                "in the end they came in together, side by side, and the people on the pier cheered louder than ever before.",
                "they did not win the {quality} {thing} that was the prize. but the people of {town} gave them {food}, and nobody remembered who had come first.",
            ),
        ),
    ),
    Plot(
        ("the lesson", "{A} learns to {skill}", "how to {skill}"),
        ("{B} taught {A} how to {skill}.", "{A} learned to {skill}, and it took patience."),
        1,
        (
            (
                "more than anything else, {A} wanted to learn how to {skill}.",
                "{A} could do many things, but {Ahe} could not {skill}, and that [made {Ahim} sad|troubled {Ahim}].",
            ),
            (
                'so {Ahe} went to {B}, an old {Brole}. "will you teach me to {skill}?" {Ahe} asked. "if you have time," said {B}.',
                '{B} the {Brole} was the best teacher in {town}. "anyone can learn to {skill}," said {B}, "but nobody can learn it in a day."',
            ),
            (
                "the first day was hard, and {A} did everything wrong. the second day was not much better.",
                'at first {A} was too fast. then {Ahe} was too slow. {B} only [smiled|laughed] and said, "once more."',
            ),
            (
                '"watch my hands," said {B}. "first this, then that, and then you wait." {A} watched, and tried again.',
                "{B} showed {Ahim} one small step at a time, and {A} repeated each step {count} times.",
            ),
            (
                "after {count} weeks {A} [got up early|came to {place}] and tried it alone. this time everything went right.",
                "then one day, without thinking about it, {A} did it. {Ahe} could hardly believe it.",
            ),
            (
                '"now you can {skill}," said {B}. "and what will you do with it?" "i will teach someone else," said {A}.',
                '{B} nodded. "the best way to keep a skill is to give it away," {Bhe} said.',
            ),
        ),
    ),
    Plot(
        ("{pet} the {animal}", "the {animal} behind {place}", "a new friend"),
        ("{A} found a {animal}, named it {pet}, and kept it.", "a small {animal} called {pet} came to live with {A}."),
        3,
        (
            (
                "behind {place} {A} heard a small sound. it was a {animal}, wet and cold, [under a bush|in an empty box|beside the road].",
                "a {animal} was sitting on the step that day, and it looked at {A} as if it had been waiting.",
            ),
            (
                '"where do you come from?" asked {A}. the {animal} [did not answer|only looked at {Ahim}|came a little closer].',
                "{A} gave the {animal} [some water|a bit of bread|a warm blanket], and it [ate everything|fell asleep at once].",
            ),
            (
                '"i will call you {pet}," said {A}, and {pet} seemed to like the name.',
                "{A} named the {animal} {pet}, because [it was small|its fur was {colour}|that was the first word that came to mind].",
            ),
            (
                'in the morning {B} the {Brole} came by. "that is a clever {animal}," said {B}. "it will bring you luck."',
                "{B} the {Brole} asked everyone in {town}, but nobody had lost a {animal}.",
            ),
            (
                "soon {pet} went everywhere with {A}: to {place}, to {place2}, and even out on the {ship}.",
                "from then on {pet} slept [at the foot of the bed|by the stove|in a basket near the door], and woke {A} every morning at {count}.",
            ),
            (
                "one night {pet} made such a noise that {A} woke up. there was smoke in the kitchen. {A} put out the fire just in time, and {pet} got [a whole fish|the best chair in the house].",
                "and when {A} lost the way in the fog, it was {pet} who [found the path|led {Ahim} home].",
            ),
        ),
    ),
    Plot(
        ("the lantern festival", "lights on the water", "before the festival"),
        (
            "{A} and {B} prepared the lantern festival of {town}.",
            "for the festival, {A} made a lantern in the shape of a {animal}.",
        ),
        1,
        (
            (
                "the lantern festival was only {count} days away, and there was still much to do.",
                "once a year the people of {town} put lanterns on the water, one for each house.",
            ),
            (
                "{A} was to make the largest lantern of all, and {B} the {Brole} was to [bake {food}|play the music|light the candles].",
                '"what shall we make this year?" asked {A}. "something new," said {B} the {Brole}.',
            ),
            (
                "they needed paper, glue and {colour} paint. the paper came on the {ship}, together with {good}.",
                "{A} [cut the paper|bent the wood] and {B} [mixed the glue|tied the knots]. the floor of {place} was covered with {colour} paper.",
            ),
            (
                "but the night before the festival, [rain came through the roof|the wind blew the door open|{pet} the {animal} sat on the lantern], and their work was ruined.",
                "then something went wrong. the {colour} paint ran out, and the shops were closed.",
            ),
            (
                '"we will begin again," said {B}. neighbours came from all sides, and each one brought [a sheet of paper|a candle|a helping hand].',
                "so everyone helped. {C} the {Crole} brought a lamp, and {count1} children cut paper until midnight.",
            ),
            (
                "when it was dark, they put the lanterns on the water. there were so many lights that the stars looked pale.",
                "at night the whole bay shone. the largest lantern had the shape of a {animal}, and it floated out to sea, past the {ship}.",
            ),
        ),
    ),
    Plot(
        ("the noise in the tower", "a mystery in {town}", "the strange sound"),
        (
            "{A} and {B} went to see what made the noise in the tower, and it was only {pet} the {animal}.",
            "the noise in the tower turned out to be the wind.",
        ),
        1,
        (
            (
                "every night at {count} o'clock there was a strange noise in the old tower. it sounded like [a bell under water|someone walking|a very slow drum].",
                "people in {town} said that the old tower was haunted, because at night they heard a [knocking|humming|sound like singing].",
            ),
            (
                '"there are no ghosts," said {B} the {Brole}. "there is always a reason." so {A} and {B} decided to find out.',
                'only {B} the {Brole} was not afraid. "let us go and look," {Bhe} said to {A}.',
            ),
            (
                "they took a {quality} {thing} and a lantern, and they waited until dark. [their hearts beat fast|it was very quiet|neither of them said a word].",
                "the door of the tower was [open|not locked]. they went up the stairs, {B} in front and {A} behind.",
            ),
            (
                "there it was again, the noise. it came from [behind a door|the highest room|under the roof].",
                '"did you hear that?" whispered {A}. "i did," whispered {B}. they went on, one step at a time.',
            ),
            (
                "{A} opened the door. inside sat {pet} the {animal}, [playing with a ball of wool|next to an old drum|on top of a broken piano].",
                "it was only the wind. it blew through a hole in the wall and made an old [bottle|pipe|bell] sing.",
            ),
            (
                "they laughed so much that they had to sit down. in the morning they told everyone, [but not everyone believed them|and the town slept well again].",
                '"you see," said {B}, "a mystery is only a question that nobody has asked yet."',
            ),
        ),
    ),
    Plot(
        ("a present for {B}", "the birthday", "the promise"),
        ("{A} made a {thing} for the birthday of {B}.", "{A} kept a promise and gave {B} a {quality} {thing}."),
        3,
        (
            (
                "{B} the {Brole} would have a birthday soon, and {A} had promised {Bhim} something special.",
                "{A} wanted to give {B} the {Brole} a present, but {Ahe} had no money at all.",
            ),
            (
                "{Ahe} thought about it for {count} days. a cake would be eaten, and flowers would fade. so {Ahe} decided to make a {quality} {thing}.",
                'what does a {Brole} need? {A} asked {C} the {Crole}. "a {quality} {thing}," said {C} at once.',
            ),
            (
                "{A} worked on it every night, [by the light of one candle|behind a locked door|while the town slept]. [twice it broke, and twice {Ahe} began again.|{pet} the {animal} kept {Ahim} company.]",
                "the wood came from an old boat, and the colour came from [berries|the market|a friend]. little by little the {thing} took shape.",
            ),
            (
                'on the morning of the birthday {A} knocked at the door. "this is for you," said {A}.',
                "when the day came, {A} put the {thing} into a box and tied it with a {colour} ribbon. {B} opened it slowly.",
            ),
            (
                '{B} did not say anything for a long time. "nobody has ever made something for me," {Bhe} said at last.',
                '"it is the most beautiful {thing} i have ever seen," said {B}, and {Bhe} [meant it|had tears in {Bhis} eyes].',
            ),
            (
                "they had {food} and [played music|told stories] until late, and the {quality} {thing} stood in the middle of the table.",
                "the {thing} hung {in_place} for many years, and {B} showed it to every guest.",
            ),
        ),
    ),
)
