// A chat's body as code that asks the same: curl, Python, JavaScript. Texts are quoted for each, whatever they hold.
export function asCurl(baseUrl, body) {
  const text = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${baseUrl}/chat/completions \\
  -H "Authorization: Bearer $GATEHOUSE_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '${text}'`;
}

export function asPython(baseUrl, body) {
  const lines = Object.entries(body).map(([name, value]) => `    ${name}=${python(value, "    ")},`);
  return `# pip install openai
import os
from openai import OpenAI

client = OpenAI(base_url=${python(baseUrl)}, api_key=os.environ["GATEHOUSE_API_KEY"])
answer = client.chat.completions.create(
${lines.join("\n")}
)
print(answer.choices[0].message.content)`;
}

export function asJavaScript(baseUrl, body) {
  const text = JSON.stringify(body, null, 2);
  return `// npm install openai; save this as hello.mjs; node hello.mjs
import OpenAI from "openai";

const client = new OpenAI({ baseURL: ${JSON.stringify(baseUrl)}, apiKey: process.env.GATEHOUSE_API_KEY });
const answer = await client.chat.completions.create(${text});
console.log(answer.choices[0].message.content);`;
}

function python(value, indent = "") {
  const deeper = `${indent}    `;
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((one) => `${deeper}${python(one, deeper)},`).join("\n")}\n${indent}]`;
  }
  if (typeof value === "object") {
    const members = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one, deeper)}`);
    return `{${members.join(", ")}}`;
  }
  return JSON.stringify(value);
}
