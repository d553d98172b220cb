/** The grammar of lessons_lib/training/stories.py: next-word probabilities, and the first ungrammatical word of a text. */

/** @typedef {[word: string, probability: number, then: string[]]} Rule a word, and what has to follow before all else */

const KINDS = ["she", "he", "it", "they"];
const REFLEXIVES = ["herself", "himself", "itself", "themselves"];
const NOUNS = [
  ["girl", "queen", "woman"],
  ["boy", "king", "man"],
  ["bird", "cat", "dog", "horse"],
  ["girls", "queens", "women", "boys", "kings", "men", "birds", "cats", "dogs", "horses"],
];
/** @type {[string, number[]][]} */
const DETERMINERS = [
  ["the", [0, 1, 2, 3]],
  ["a", [0, 1, 2]],
  ["this", [0, 1, 2]],
  ["these", [3]],
  ["two", [3]],
];
const ADJECTIVES = ["brave", "happy", "quiet", "small", "tired", "young"];
const PREPOSITIONS = ["behind", "beside", "near"];
const INTRANSITIVE = ["dance", "laugh", "sing", "sleep", "smile", "wait"];
const TRANSITIVE = ["chase", "follow", "hear", "know", "like", "love", "see"];

/** @param {string[]} words @param {string[]} then @returns {Rule[]} */
const oneOf = (words, ...then) => words.map((word) => [word, 1 / words.length, then]);

/** @param {[number, Rule[]][]} alternatives @returns {Rule[]} */
const either = (...alternatives) =>
  alternatives.flatMap(([share, rules]) =>
    rules.map(([word, p, then]) => /** @type {Rule} */ ([word, share * p, then])),
  );

/** @param {string[]} verbs @param {number} kind */
const conjugated = (verbs, kind) => (kind === 3 ? verbs : verbs.map((verb) => `${verb}s`));

/** @type {Record<string, Rule[]>} */
const GRAMMAR = {};

/** A determiner, an optional adjective, a noun, and its continuation. @param {string} role @param {(kind: number) => string[]} then */
function nounPhrase(role, then) {
  for (const [, kinds] of DETERMINERS) {
    const nouns = kinds.flatMap((kind) => NOUNS[kind].map((noun) => /** @type {Rule} */ ([noun, 1, then(kind)])));
    const noun = `${role}: noun ${kinds}`;
    GRAMMAR[noun] = either([1 / nouns.length, nouns]);
    GRAMMAR[`adjective or ${noun}`] = either([0.3, oneOf(ADJECTIVES, noun)], [0.7, GRAMMAR[noun]]);
  }
  GRAMMAR[role] = DETERMINERS.map(([word, kinds]) => [
    word,
    1 / DETERMINERS.length,
    [`adjective or ${role}: noun ${kinds}`],
  ]);
}

nounPhrase("subject", (kind) => [`modifier or predicate ${kind}`, `next sentence ${kind}`]);
nounPhrase("other subject", (kind) => [`their verb ${kind}`]);
nounPhrase("object", () => []);
KINDS.forEach((pronoun, kind) => {
  const [intransitive, transitive] = [conjugated(INTRANSITIVE, kind), conjugated(TRANSITIVE, kind)];
  const [predicate, end] = [`predicate ${kind}`, `end ${kind}`];
  GRAMMAR[predicate] = either(
    [0.4, oneOf(intransitive, end)],
    [0.6, oneOf(transitive, `object or reflexive ${kind}`, end)],
  );
  GRAMMAR[`modifier or predicate ${kind}`] = either(
    [0.2, oneOf(PREPOSITIONS, "object", predicate)],
    [0.3, oneOf(["that"], `relative clause ${kind}`, predicate)],
    [0.5, GRAMMAR[predicate]],
  );
  GRAMMAR[`relative clause ${kind}`] = either([0.5, oneOf(transitive, "object")], [0.5, GRAMMAR["other subject"]]);
  GRAMMAR[`their verb ${kind}`] = oneOf(transitive);
  GRAMMAR[`object or reflexive ${kind}`] = either([0.25, oneOf([REFLEXIVES[kind]])], [0.75, GRAMMAR.object]);
  GRAMMAR[end] = either([0.2, oneOf(["and"], predicate)], [0.8, oneOf(["."])]);
  GRAMMAR[`pronoun ${kind}`] = oneOf([pronoun], predicate);
  GRAMMAR[`next sentence ${kind}`] = either(
    [0.4, oneOf([pronoun], predicate, `next sentence ${kind}`)],
    [0.2, oneOf(["then"], `pronoun ${kind}`, `next sentence ${kind}`)],
    [0.4, GRAMMAR.subject],
  );
});

/**
 * Parse words from the beginning of a story: the possible next symbols, and the position of the first ungrammatical
 * word. Exactly one of the two exists.
 * @param {string[]} words @returns {{ next: Rule[] | null, error: number | null }}
 */
function follow(words) {
  const leftToSay = ["subject"]; // the next symbol last
  for (const [place, word] of words.entries()) {
    const rule = GRAMMAR[/** @type {string} */ (leftToSay.pop())].find(([written]) => written === word);
    if (!rule) return { next: null, error: place };
    leftToSay.push(...[...rule[2]].reverse());
  }
  return { next: GRAMMAR[leftToSay[leftToSay.length - 1]], error: null };
}

/** The position of the first ungrammatical word. @param {string[]} words */
export function firstError(words) {
  return follow(words).error;
}

/**
 * The probability of each next word of a vocabulary; null after an ungrammatical text.
 * @param {string[]} words @param {string[]} vocabulary
 */
export function nextWord(words, vocabulary) {
  const { next } = follow(words);
  return next && vocabulary.map((word) => next.find(([written]) => written === word)?.[1] ?? 0);
}
