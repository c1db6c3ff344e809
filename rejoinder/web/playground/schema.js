/**
 * A part of JSON Schema, for a look at an answer while it arrives: types, enum and const, objects,
 * arrays, lengths, ranges, patterns, anyOf/oneOf/allOf/not, and $ref within the schema. What it does
 * not know it leaves alone and names; the server enforces more than this.
 */

const KNOWN = new Set("$defs $id $ref $schema additionalProperties allOf anyOf const default definitions description enum examples exclusiveMaximum exclusiveMinimum format items maxItems maxLength maximum minItems minLength minimum multipleOf not nullable oneOf pattern prefixItems properties required title type uniqueItems minProperties maxProperties".split(" "));

const TYPES = {
  object: (value) => value !== null && typeof value === "object" && !Array.isArray(value),
  array: Array.isArray,
  string: (value) => typeof value === "string",
  number: (value) => typeof value === "number",
  integer: (value) => Number.isInteger(value),
  boolean: (value) => typeof value === "boolean",
  null: (value) => value === null,
};

/**
 * What is wrong with a schema itself; `strict`: also with the subset that strict output needs.
 * @param {any} schema @param {{strict: boolean}} options @returns {string[]}
 */
export function lint(schema, { strict }) {
  const faults = [];
  walk(schema, "", (node, path) => {
    if (typeof node === "boolean") return;
    const at = path || "the schema";
    if (!TYPES.object(node)) return void faults.push(`${at}: not an object`);
    for (const type of [node.type ?? []].flat()) if (!Object.hasOwn(TYPES, type)) faults.push(`${at}: unknown type "${type}"`);
    for (const key of Object.keys(node)) if (!KNOWN.has(key)) faults.push(`${at}: "${key}" is not checked on this page`);
    if (node.pattern !== undefined && !regex(node.pattern)) faults.push(`${at}: the pattern is no regular expression`);
    if (typeof node.$ref === "string" && resolve(schema, node.$ref) === undefined) faults.push(`${at}: $ref "${node.$ref}" leads nowhere`);
    if (!strict || node.type !== "object") return;
    if (node.additionalProperties !== false) faults.push(`${at}: strict needs "additionalProperties": false`);
    const missing = Object.keys(node.properties ?? {}).filter((name) => !(node.required ?? []).includes(name));
    if (missing.length) faults.push(`${at}: strict needs "required" to name ${missing.join(", ")}`);
  });
  if (strict && schema?.type !== "object") faults.unshift("the schema: strict needs an object at the top");
  return faults;
}

function walk(node, path, visit) {
  visit(node, path);
  if (!TYPES.object(node)) return;
  for (const key of ["properties", "$defs", "definitions"]) {
    for (const [name, child] of Object.entries(node[key] ?? {})) walk(child, `${path}${key === "properties" ? "." : `.${key}.`}${name}`, visit);
  }
  for (const key of ["anyOf", "oneOf", "allOf", "prefixItems"]) {
    if (Array.isArray(node[key])) node[key].forEach((child, place) => walk(child, `${path}.${key}[${place}]`, visit));
  }
  if (TYPES.object(node.items)) walk(node.items, `${path}[]`, visit);
  if (TYPES.object(node.additionalProperties)) walk(node.additionalProperties, `${path}.*`, visit);
  if (TYPES.object(node.not)) walk(node.not, `${path}.not`, visit);
}

/** @param {any} root @param {string} ref @returns {any} */
function resolve(root, ref) {
  if (!ref.startsWith("#")) return undefined;
  let node = root;
  for (const part of ref.slice(1).split("/").filter(Boolean)) {
    node = node?.[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")];
  }
  return node;
}

function regex(pattern) {
  try {
    return new RegExp(pattern, "u");
  } catch {
    return null;
  }
}

/**
 * @param {any} value @param {any} schema @param {{partial?: boolean}} [options] `partial`: the value
 *   is still growing, so what is only missing is no fault
 * @returns {{path: string, message: string}[]}
 */
export function validate(value, schema, { partial = false } = {}) {
  return new Validator(schema, partial).check(value, schema, "", 0);
}

class Validator {
  constructor(root, partial) {
    this.root = root;
    this.partial = partial;
  }

  check(value, schema, path, depth) {
    if (schema === true || schema === undefined || depth > 60) return [];
    if (schema === false) return [{ path, message: "nothing is allowed here" }];
    const faults = [];
    const say = (message) => faults.push({ path: path || "the answer", message });
    if (typeof schema.$ref === "string") {
      const target = resolve(this.root, schema.$ref);
      if (target !== undefined) faults.push(...this.check(value, target, path, depth + 1));
    }
    this.#own(value, schema, say);
    this.#combined(value, schema, path, depth, faults, say);
    if (TYPES.object(value)) this.#object(value, schema, path, depth, faults, say);
    if (Array.isArray(value)) this.#array(value, schema, path, depth, faults, say);
    return faults;
  }

  #own(value, schema, say) {
    const types = [schema.type ?? []].flat();
    if (types.length && !types.some((type) => TYPES[type]?.(value)) && !(schema.nullable && value === null)) {
      say(`${types.join(" or ")} expected, ${Array.isArray(value) ? "array" : value === null ? "null" : typeof value} found`);
    }
    const growing = this.partial && typeof value === "string";
    if (schema.enum && !schema.enum.some((one) => same(one, value) || (growing && String(one).startsWith(value)))) say(`not one of ${schema.enum.map((one) => JSON.stringify(one)).join(", ")}`);
    if (Object.hasOwn(schema, "const") && !same(schema.const, value) && !(growing && String(schema.const).startsWith(value))) say(`not ${JSON.stringify(schema.const)}`);
    if (typeof value === "string") {
      const length = [...value].length;
      if (length > (schema.maxLength ?? Infinity)) say(`longer than ${schema.maxLength}`);
      if (!this.partial && length < (schema.minLength ?? 0)) say(`shorter than ${schema.minLength}`);
      if (!this.partial && schema.pattern && regex(schema.pattern)?.test(value) === false) say(`does not match ${schema.pattern}`);
    }
    if (typeof value === "number" && !this.partial) {
      if (value > (schema.maximum ?? Infinity)) say(`above ${schema.maximum}`);
      if (value < (schema.minimum ?? -Infinity)) say(`below ${schema.minimum}`);
      if (value >= (schema.exclusiveMaximum ?? Infinity)) say(`not below ${schema.exclusiveMaximum}`);
      if (value <= (schema.exclusiveMinimum ?? -Infinity)) say(`not above ${schema.exclusiveMinimum}`);
      const times = value / (schema.multipleOf ?? 1);
      if (schema.multipleOf && Math.abs(times - Math.round(times)) > 1e-9) say(`no multiple of ${schema.multipleOf}`);
    }
  }

  #combined(value, schema, path, depth, faults, say) {
    const fits = (one) => !this.check(value, one, path, depth + 1).length;
    for (const one of schema.allOf ?? []) faults.push(...this.check(value, one, path, depth + 1));
    if (schema.anyOf && !schema.anyOf.some(fits)) say("fits none of anyOf");
    if (schema.oneOf) {
      const number = schema.oneOf.filter(fits).length;
      if (number === 0 || (number > 1 && !this.partial)) say(`fits ${number} of oneOf, not one`);
    }
    if (schema.not && !this.partial && fits(schema.not)) say("fits what it must not");
  }

  #object(value, schema, path, depth, faults, say) {
    const properties = schema.properties ?? {};
    if (!this.partial) {
      for (const name of schema.required ?? []) if (!Object.hasOwn(value, name)) say(`"${name}" is missing`);
      if (Object.keys(value).length < (schema.minProperties ?? 0)) say(`fewer than ${schema.minProperties} members`);
    }
    if (Object.keys(value).length > (schema.maxProperties ?? Infinity)) say(`more than ${schema.maxProperties} members`);
    for (const [name, child] of Object.entries(value)) {
      const inside = `${path}.${name}`;
      if (Object.hasOwn(properties, name)) faults.push(...this.check(child, properties[name], inside, depth + 1));
      else if (schema.additionalProperties === false) faults.push({ path: inside, message: "is not in the schema" });
      else faults.push(...this.check(child, schema.additionalProperties, inside, depth + 1));
    }
  }

  #array(value, schema, path, depth, faults, say) {
    if (value.length > (schema.maxItems ?? Infinity)) say(`more than ${schema.maxItems} items`);
    if (!this.partial && value.length < (schema.minItems ?? 0)) say(`fewer than ${schema.minItems} items`);
    if (schema.uniqueItems && !this.partial && new Set(value.map((one) => JSON.stringify(one))).size < value.length) say("items are not distinct");
    const first = schema.prefixItems ?? [];
    value.forEach((child, place) => faults.push(...this.check(child, place < first.length ? first[place] : schema.items, `${path}[${place}]`, depth + 1)));
  }
}

function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/**
 * The value of a JSON text that is still growing: open strings and brackets are closed.
 * @param {string} text @returns {{value: any, complete: boolean}|null} null where it is no JSON
 */
export function grown(text) {
  try {
    return { value: JSON.parse(text), complete: true };
  } catch {
    /* it may only be unfinished */
  }
  const closers = [];
  let inString = false;
  let safe = 0;
  let safeClosers = "";
  for (let i = 0; i < text.length; i++) {
    const char = text[i];
    if (inString) {
      if (char === "\\") i++;
      else if (char === '"') inString = false;
    } else if (char === '"') inString = true;
    else if (char === "{" || char === "[") closers.push(char === "{" ? "}" : "]");
    else if (char === "}" || char === "]") closers.pop();
    if (!inString && "{[}],".includes(char)) {
      safe = char === "," ? i : i + 1;
      safeClosers = closers.toReversed().join("");
    }
  }
  const rest = closers.toReversed().join("");
  for (const attempt of [text + (inString ? '"' : "") + rest, text.slice(0, safe) + safeClosers]) {
    try {
      return { value: JSON.parse(attempt), complete: false };
    } catch {
      /* the next one is shorter */
    }
  }
  return null;
}
