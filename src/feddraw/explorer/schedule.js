"use strict";
/* FedDRAW's mathematics: the same operations in the same order as schedules.py, so that the numbers agree. */

const READINGS = ["reported", "algorithm1", "equation"];

/** The trust left in size: 1 at first, then decaying. */
function gammaOf(round, { eta, reading }) {
  const elapsed = reading === "equation" ? round + 1 : round;
  return Math.exp(-eta * elapsed);
}

/** The softmax's inverse temperature; null in a round that takes the prior as it is. */
function betaOf(round, { rounds, lam, beta_max, reading }) {
  if (round === 0 && reading !== "algorithm1") return null;
  const left = reading === "algorithm1" ? rounds - round : rounds - 1 - round;
  return beta_max * -Math.expm1(-lam * left);
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

/** Each client's share of the images. */
function sizePrior(sizes) {
  const total = sum(sizes);
  return sizes.map((size) => size / total);
}

/** The largest score is subtracted first: no beta is too large. */
function softmax(scores, beta) {
  const top = Math.max(...scores);
  const shifted = scores.map((score) => Math.exp(beta * (score - top)));
  const total = sum(shifted);
  return shifted.map((value) => value / total);
}

/** The similarities of one round: given once, one row per round, or not at all (then every one is 1). */
function similaritiesOf(round, { sizes, similarities }) {
  if (!similarities) return sizes.map(() => 1);
  return Array.isArray(similarities[0]) ? similarities[round] : similarities;
}

function roundOf(round, settings) {
  const prior = sizePrior(settings.sizes);
  const similarity = similaritiesOf(round, settings);
  const gamma = gammaOf(round, settings);
  const beta = betaOf(round, settings);
  const reputation = prior.map((p, i) => gamma * p + (1 - gamma) * similarity[i]);
  const weight = beta === null ? prior : softmax(reputation, beta);
  const clients = settings.sizes.map((size, i) => ({
    client: settings.clients?.[i] ?? `C${i + 1}`,
    size,
    prior: prior[i],
    similarity: similarity[i],
    reputation: reputation[i],
    weight: weight[i],
  }));
  return { round, gamma, beta, clients };
}

/** Every round's weights and parts: the rows of `feddraw weights --json`. */
function schedule(settings) {
  return Array.from({ length: settings.rounds }, (_, round) => roundOf(round, settings));
}
