// Shows /openapi.json as a list that people can read: paths, fields, answers.

const element = (name, text, attributes = {}) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

const resolved = (document_, schema) => {
  const reference = schema?.$ref ?? schema?.allOf?.[0]?.$ref;
  return reference ? document_.components.schemas[reference.split("/").pop()] : (schema ?? {});
};

const typeOf = (schema) => {
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const !== undefined) return String(schema.const);
  if (schema.$ref) return schema.$ref.split("/").pop();
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return [...new Set(either.map(typeOf))].filter((each) => each !== "null").join(" | ");
  const types = [schema.type ?? "any"].flat().filter((each) => each !== "null");
  return types.join(" | ") + (schema.items ? ` of ${typeOf(schema.items)}` : "");
};

const rowsOf = (schema) => {
  const needed = new Set(schema.required ?? []);
  return Object.entries(schema.properties ?? {}).map(([name, field]) => [
    name + (needed.has(name) ? " (needed)" : ""),
    typeOf(field),
    field.description ?? "",
  ]);
};

const tableOf = (caption, rows) => {
  const table = element("table");
  table.append(element("caption", caption));
  const body = element("tbody");
  for (const [name, type, words] of rows) {
    const row = element("tr");
    const head = element("th", undefined, { scope: "row" });
    head.append(element("code", name));
    row.append(head, element("td", type), element("td", words));
    body.append(row);
  }
  table.append(body);
  return table;
};

const section = (document_, path, method, operation) => {
  const name = `${method.toUpperCase()} ${path}`;
  const made = element("section", undefined, { id: `${method}${path}`.replaceAll(/[^a-z]+/g, "-") });
  const heading = element("h2");
  heading.append(element("code", name));
  made.append(heading, element("p", operation.summary ?? ""));
  if (operation.description) made.append(element("p", operation.description));
  const content = Object.values(operation.requestBody?.content ?? {})[0];
  const body = resolved(document_, content?.schema);
  if (body.properties) made.append(tableOf("Fields", rowsOf(body)));
  const parameters = (operation.parameters ?? []).map((each) => [
    each.name,
    typeOf(each.schema ?? {}),
    each.description ?? `in the ${each.in}`,
  ]);
  if (parameters.length) made.append(tableOf("Parameters", parameters));
  for (const example of body.examples ?? []) {
    const block = element("pre");
    block.append(element("code", JSON.stringify(example, null, 1)));
    made.append(block);
  }
  const answers = Object.entries(operation.responses ?? {}).map(([status, answer]) => {
    const schema = Object.values(answer.content ?? {})[0]?.schema ?? {};
    const keys = Object.keys(resolved(document_, schema).properties ?? {}).join(", ");
    return [status, typeOf(schema), status < "300" ? keys || answer.description : answer.description];
  });
  made.append(tableOf("Answers", answers));
  return made;
};

const show = async () => {
  const answer = await fetch("/openapi.json");
  const described = await answer.json();
  const contents = element("ul");
  const paths = document.getElementById("paths");
  for (const [path, methods] of Object.entries(described.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const made = section(described, path, method, operation);
      const item = element("li");
      const link = element("a", `${method.toUpperCase()} ${path}`, { href: `#${made.id}` });
      item.append(link, ` ${operation.summary ?? ""}`);
      contents.append(item);
      paths.append(made);
    }
  }
  document.getElementById("contents").append(contents);
  document.getElementById("about").before(element("p", described.info.description));
};

show().catch((error) => {
  document.getElementById("paths").textContent = `The description cannot be read: ${error.message}`;
});
