/* What happens in a round, said in words. */

const SPACE = "\u00a0";

/** A share as a whole per cent; small ones with a decimal. */
function percent(share) {
  if (share > 0 && share < 0.0005) return `less than 0.1${SPACE}%`;
  return `${(100 * share).toFixed(share < 0.0095 ? 1 : 0)}${SPACE}%`;
}

/** Three decimals, without a minus before zero. */
const decimal = (value) => (Math.abs(value) < 0.0005 ? 0 : value).toFixed(3);

/** Clients with the same numbers share a line and a sentence. */
function groupsOf(rows) {
  const groups = new Map();
  rows[0].clients.forEach(({ size }, i) => {
    const key = [size, ...rows.map((row) => row.clients[i].similarity)].join(" ");
    groups.set(key, [...(groups.get(key) ?? []), i]);
  });
  return [...groups.values()];
}

function namesOf(members, clients) {
  const names = members.map((i) => clients[i].client);
  if (names.length <= 3) return listed(names);
  const together = members.at(-1) - members[0] === members.length - 1;
  return together ? `${names[0]} to ${names.at(-1)}` : `${listed(names.slice(0, 2).concat(`${names.length - 2} more`))}`;
}

const listed = (names) => (names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`);

/** The round as a whole: what gamma and beta do in it. */
function roundWords(row) {
  const trust = `γ is ${decimal(row.gamma)}`;
  if (row.beta === null) return `This round takes the shares of the images as they are: FedDRAW equals FedAvg. No similarity counts yet.`;
  const sources = `${trust}: ${percent(row.gamma)} of a reputation comes from size, ${percent(1 - row.gamma)} from similarity.`;
  if (row.beta === 0) return `${sources} β is 0: reputations no longer matter and every client counts the same.`;
  const factor = Math.exp(0.1 * row.beta);
  const by = factor < 100 ? factor.toFixed(2) : factor.toPrecision(3);
  return `${sources} β is ${decimal(row.beta)}: a reputation higher by 0.1 multiplies a weight by ${by}.`;
}

/** One client, or several with the same numbers. */
function clientWords(members, row) {
  const { prior, weight, reputation, similarity } = row.clients[members[0]];
  const several = members.length > 1;
  const each = several ? " each" : "";
  const [hold, count] = several ? ["hold", "count"] : ["holds", "counts"];
  const ratio = weight / prior;
  const joint = row.beta === null ? `and ${count} as much:` : Math.abs(ratio - 1) < 0.02 ? `and ${count} about as much:` : `but ${count}`;
  const first = ` ${hold} ${percent(prior)} of the images${each} ${joint} ${percent(weight)}${each}`;
  const equal = 1 / row.clients.length;
  const beside = Math.abs(weight / equal - 1) < 0.02 ? "an equal share" : `${weight > equal ? "more" : "less"} than an equal share of ${percent(equal)}`;
  if (row.beta === null) return `${first}, ${beside}.`;
  const parts = `${decimal(row.gamma)} × ${decimal(prior)} (size) + ${decimal(1 - row.gamma)} × ${decimal(similarity)} (similarity)`;
  return `${first}, ${beside}. Reputation ${decimal(reputation)} = ${parts}.`;
}

/** The chart of weights for those who do not see it. */
function weightsInWords(rows, groups) {
  const clients = rows[0].clients;
  const course = groups.map((members) => {
    const values = rows.map((row) => row.clients[members[0]].weight);
    return `${namesOf(members, clients)} from ${percent(values[0])} to ${percent(values.at(-1))}`;
  });
  return `Weights under FedDRAW from round 0 to round ${rows.length - 1}: ${course.join("; ")}.`;
}
