#include "eval/ruler/words.h"

#include <algorithm>

namespace hysparse::ruler {
namespace {

constexpr std::string_view kAdjectives =
    "able absent abundant acidic active actual adept agile airy alert alien alive aloof amber ample "
    "ancient angular annual anxious arid aromatic ashen astute atomic austere autumnal awake awkward "
    "azure balanced balmy barren bashful basic beloved billowy bitter blank bleak blissful blunt bold "
    "bookish bouncy brainy brave brazen breezy brief bright brisk brittle broad bubbly bulky bumpy "
    "buoyant busy calm candid carefree careful casual cautious central chalky charming cheerful chilly "
    "chubby circular civic civil classic clean clever cloudy clumsy coastal colossal comic common "
    "compact complex concrete constant cosmic courtly cozy crafty creamy crimson crisp crooked crowded "
    "crucial crude cryptic cubic curious curly curved damp daring dark dashing dazzling decent deep "
    "definite delicate dense devoted diligent dim direct distant divine dizzy docile dreamy drowsy dry "
    "dual durable dusty dutiful dynamic eager earnest earthy easygoing eerie elastic elder elegant "
    "eloquent eminent empty endless enormous entire equal ethical even exact exotic expert fabled faint "
    "fair faithful famous fancy fast fearless feisty fertile festive fierce fiery final fine firm "
    "fitting flaky flat flexible floral fluent fluffy focal foggy fond formal fragile fragrant frank "
    "free frequent fresh friendly frosty frozen frugal fruitful fuzzy gallant gaudy generous gentle "
    "genuine giant giddy gifted gilded glad gleaming global glossy golden graceful grand granular "
    "grateful gray greasy green gritty groovy grown guarded gusty hairy handy hardy harsh hasty hazy "
    "heavy helpful hidden hollow honest hopeful huge humble humid hungry husky icy ideal idle immense "
    "inner intact intense ivory jagged jaunty jolly jovial joyful juicy keen kind knobby known large "
    "lasting lavish lawful lazy leafy lean legal lengthy level light likely limber linear liquid lively "
    "local lofty lonely long loose loud lovely loyal lucid lucky lunar lush magnetic main majestic "
    "mammoth marine massive mature meager mellow merry metallic mighty mild minor misty mobile modern "
    "modest moist moody mossy mundane muscular musical mute mystic narrow native neat nervous neutral "
    "new nice nifty nimble noble noisy normal notable numeric oaken obedient oblong obvious odd oily "
    "olive opaque open optimal orderly organic ornate oval owlish pale partial patient peaceful pensive "
    "perky petite placid plain playful pleasant plucky plump plush polar polite popular portable posh "
    "potent practical precise pretty prickly primal prime private prompt proper proud prudent public "
    "pungent pure quaint quick quiet quirky radiant rapid rare raw ready regal regular remote rich rigid "
    "ripe robust roomy rosy rough round royal ruddy rugged rural rustic sacred salty sandy sane satin "
    "savory scarce scarlet scenic secret secure serene shaggy sharp shiny shy silent silky silver simple "
    "sincere skillful sleek sleepy slender slim slow small smart smoky smooth snappy snowy snug sober "
    "social soft solar solemn solid somber sonic sour sparse speedy spicy spiral splendid spotted square "
    "stable stark stately steady steep stern sticky stiff stormy stout strict striped strong sturdy "
    "subtle sudden sugary sunken sunny superb supple swampy sweet swift tactful tall tame tan tangy "
    "tardy tart tasty tender tepid thankful thick thin thorny thrifty tidal tidy timely tiny tired tough "
    "tranquil trim tropical trusty twin ultra unique upbeat urban useful usual vacant valid vast velvet "
    "verbal vibrant vigilant violet viral vital vivid vocal warm wary watchful watery wavy waxen weary "
    "weekly whole wicked wide wild wily windy winged wintry wise witty wooden woolly wordy worthy yearly "
    "young zany zealous zesty";

constexpr std::string_view kNouns =
    "acorn actor adobe airport album alcove algebra alley almanac alpaca anchor anklet antler anvil "
    "apple apricot apron arcade arch archer arena armor arrow artist atlas attic aunt autumn avenue "
    "award badge badger bagel bakery balcony ballad ballot bamboo banana bandage banjo banner barge "
    "barley barn baron barrel basalt basin basket bassoon bayou beacon beagle beaker beaver bedrock "
    "beehive beetle bell bench berry bicycle birch biscuit bison blanket blazer blender blossom bobcat "
    "bonfire bonnet bookcase boulder bouquet bowl bracelet brass bread brick bridge brook broom bucket "
    "buckle buffalo bugle bungalow burrow butter button cabbage cabin cable cactus camel camera candle "
    "canoe canopy canyon caravan cardigan cargo carpet carrot cartoon cashew castle catalog cavern cedar "
    "cellar cello ceramic chalice chamber chapel chariot cheetah cherry chestnut chimney chisel cider "
    "cinema circus citadel citrus clarinet clay cliff cloak clock clover coach cobalt cobra cocoa "
    "coconut coffee collar comet compass concert condor copper coral corridor cottage cotton cougar "
    "courier cowboy coyote cradle crane crater crayon creek cricket crocus crown crystal cupboard "
    "curtain cushion custard cyclone cypress daffodil dairy daisy dancer deacon delta denim depot desert "
    "diamond diary dinner dolphin domino donkey doorway dragon drawer drum dune eagle easel eclipse "
    "elbow elk ember emerald emperor engine envelope estuary falcon farmer feather fern ferry fiddle "
    "field fig finch flagpole flamingo flannel flask flute foliage forest forge fossil fountain fox "
    "freckle freighter galaxy gallery garden garlic garment garnet gazebo gazelle geyser ginger giraffe "
    "glacier glider globe goblet goose gorge granite grape gravel grotto guitar gull hamlet hammer "
    "hammock harbor harp harvest hatchet hawk hazel hedge helmet hemlock heron hickory highway hilltop "
    "hinge hippo honey hornet horse hostel hunter hurdle hyacinth iceberg igloo inkwell insect iris iron "
    "island ivy jackal jacket jaguar janitor jar jasmine jelly jewel jigsaw journal judge jungle juniper "
    "kayak kennel kernel kettle keyhole kimono kitchen kitten knapsack knight koala ladder ladle lagoon "
    "lantern larch lark lasso lattice laundry lava lawyer ledger lemon leopard lettuce library lichen "
    "lilac lily linen lion lizard llama lobby lobster locket lodge loft lotus lumber lynx magnet "
    "magnolia magpie mailbox mallard mallet mandolin mango mantle maple marble market marmot marsh mask "
    "meadow medal melon merchant mermaid meteor mineral minnow mirror mitten monarch monkey monsoon "
    "moose mortar mosaic mosque moth motor mountain mural museum mushroom musket muslin nectar needle "
    "nephew nest nickel notebook nozzle nugget nutmeg oasis oboe ocean ocelot octopus onion opal opera "
    "orange orbit orchard orchid ostrich otter oven owl oyster paddle pagoda palace palette palm pancake "
    "panda pansy panther papaya paper parade parcel parchment parlor parrot parsley pasture patio "
    "pavement peach peacock pear pebble pelican pencil pendant penguin pepper pewter pheasant piano "
    "picnic pier pigeon pillar pillow pilot pinecone pirate pistachio pitcher planet platter plaza plow "
    "plum pocket podium poem polo pond pony poplar poppy porch portrait potato potter powder prairie "
    "prism puddle puffin pulley pumpkin puppet puzzle pyramid quail quarry quartz quill quilt rabbit "
    "raccoon radish railway rainbow ranch raven reef reindeer relic ribbon riddle river robin rocket "
    "rooster rope rose rowboat ruby rudder saddle sailor salad salmon sandal sapphire satchel saucer "
    "sausage scarf scholar school scooter seashell seaweed shadow shelf shepherd sheriff shovel shrub "
    "shuttle sickle signal siren skater skillet sleigh slipper snail sofa sonata sparrow spatula sphere "
    "spider spinach spindle spruce squid squirrel stadium stallion statue steeple stencil stork street "
    "sunset swallow swan sweater syrup tablet tadpole tailor tangerine tavern teapot temple tent terrace "
    "theater thicket thimble thistle throne thunder ticket tiger timber tomato torch tower tractor trail "
    "treasure trellis trout trumpet tulip tundra tunnel turban turkey turnip turtle tuxedo twig umbrella "
    "unicorn urn valley vanilla vase vault veranda village vine vineyard violin volcano vulture wagon "
    "walnut walrus warbler water wheat whistle willow window winter wizard wolf wombat yacht yarn yogurt "
    "zebra zephyr zipper";

constexpr std::string_view kVerbs =
    "absorb accept achieve adapt admire admit adopt adore advise agree allow amaze amuse announce answer "
    "appear applaud argue arrive assemble assist attach attend attract avoid bake bathe become begin "
    "behave believe belong bestow blend blink borrow bounce breathe bring browse build bury calculate "
    "capture carve celebrate challenge chase choose climb collect combine compare compose confess "
    "connect consider consult convey count crawl create cultivate dance dare debate decide declare "
    "decorate deliver depart describe deserve design detect develop devote differ digest discover "
    "discuss divide donate draft draw dream drift earn educate elect embark embrace emerge employ "
    "enclose endure engrave enjoy enlarge enlist enter escape evaluate examine exceed exchange exist "
    "expand explain explore express extend fasten fetch finish flourish follow forget forgive fulfil "
    "gather generate giggle govern grab greet grind guess guide happen hasten heal hesitate hoist hover "
    "hurry imagine imitate improve include inform inherit inspect inspire install invent invite juggle "
    "justify kneel knit launch learn lend linger listen locate magnify manage measure mend mention "
    "migrate mingle multiply murmur navigate nourish nudge obey observe obtain offer operate organize "
    "overcome paint participate perform persuade plant polish ponder prepare preserve pretend prevent "
    "proceed produce promise protect provide publish pursue qualify quote raise reach realize rebuild "
    "recall receive recite reckon recover reduce reflect refuse rehearse rejoice relax release remain "
    "remember remind remove render repair repeat replace reply rescue resemble resolve respect restore "
    "retire return reveal revise reward roam sail scatter scribble search select separate shout shrink "
    "simplify sing sketch slide soften solve speak sprinkle stitch stretch stroll struggle study suggest "
    "summon supply support suppose surround survive suspend swim teach thank think throw translate "
    "travel trust unfold unite unpack unveil uphold utter vanish venture verify visit wander warn weave "
    "welcome whisper wonder write yearn yield";

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace

const std::vector<std::string_view>& adjectives() {
  static const std::vector<std::string_view> list = split(kAdjectives);
  return list;
}
const std::vector<std::string_view>& nouns() {
  static const std::vector<std::string_view> list = split(kNouns);
  return list;
}
const std::vector<std::string_view>& verbs() {
  static const std::vector<std::string_view> list = split(kVerbs);
  return list;
}

}  // namespace hysparse::ruler
