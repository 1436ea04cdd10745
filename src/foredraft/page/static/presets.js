/* Starting points, as data. Replace `families` by measured results: put their origin into `source` and set `illustrative`
 * to false; the note under the buttons follows.
 *
 * families: acceptance[i] = P(draft i + 1 accepted | all before it were); the last value holds for deeper drafts.
 *           draft_cost is in plain passes per draft, second_chance the chance of the next guess when the first is wrong.
 * machines: the makers' dense bf16 peaks ("cpu" is a round number); the same values as in foredraft.economics.
 */
"use strict";
globalThis.foredraft = globalThis.foredraft || {};

foredraft.presets = {
  illustrative: true,
  source: "typical shapes, drawn by hand to show how the families differ",
  families: [
    {
      id: "draft-model",
      name: "Draft model",
      text: "A small language model. Accepts well and evenly, but every draft is a pass of its own.",
      acceptance: [0.8, 0.79, 0.78, 0.77, 0.76],
      draft_cost: 0.15,
      length: 4,
      second_chance: 0.45,
    },
    {
      id: "eagle",
      name: "EAGLE-3 head",
      text: "One small layer fed with the target’s own features. Cheap; fades as it feeds on its own output.",
      acceptance: [0.81, 0.77, 0.74, 0.71, 0.68, 0.65, 0.62],
      draft_cost: 0.04,
      length: 5,
      second_chance: 0.5,
    },
    {
      id: "medusa",
      name: "Medusa heads",
      text: "One guess per head from the same state, almost free; each head looks further ahead and sees less.",
      acceptance: [0.72, 0.56, 0.45, 0.36, 0.3],
      draft_cost: 0.01,
      length: 4,
      second_chance: 0.4,
    },
    {
      id: "ngram-edit",
      name: "n-gram, editing",
      text: "Copies what followed the same words earlier. When the answer repeats the prompt, it goes on and on.",
      acceptance: [0.78, 0.88, 0.92, 0.94, 0.95],
      draft_cost: 0.005,
      length: 12,
      second_chance: 0.15,
    },
    {
      id: "ngram-chat",
      name: "n-gram, free prose",
      text: "The same copying where nothing repeats: mostly wrong. Harmless while drafts and compute are free.",
      acceptance: [0.16, 0.32, 0.45, 0.5],
      draft_cost: 0.005,
      length: 4,
      second_chance: 0.1,
    },
    {
      id: "big-draft",
      name: "Draft model, too big",
      text: "Agrees almost always and costs almost as much. Being right isn’t enough.",
      acceptance: [0.88],
      draft_cost: 0.8,
      length: 4,
      second_chance: 0.5,
    },
  ],
  machines: [
    { id: "cpu", name: "Desktop CPU", flops_per_second: 1e12, bytes_per_second: 60e9 },
    { id: "rtx-4090", name: "RTX 4090", flops_per_second: 165e12, bytes_per_second: 1008e9 },
    { id: "a100", name: "A100 80 GB", flops_per_second: 312e12, bytes_per_second: 2039e9 },
    { id: "h200", name: "H200", flops_per_second: 989e12, bytes_per_second: 4800e9 },
  ],
  models: [
    {
      id: "smollm2-135m",
      name: "SmolLM2 135M",
      parameters: 134.5e6,
      layers: 30,
      query_width: 576,
      key_value_width: 192,
      bytes_per_parameter: 2,
      cache_bytes: 2,
    },
    {
      id: "qwen3-0.6b",
      name: "Qwen3 0.6B",
      parameters: 596e6,
      layers: 28,
      query_width: 2048,
      key_value_width: 1024,
      bytes_per_parameter: 2,
      cache_bytes: 2,
    },
    {
      id: "llama-3.1-8b",
      name: "Llama 3.1 8B",
      parameters: 8.03e9,
      layers: 32,
      query_width: 4096,
      key_value_width: 1024,
      bytes_per_parameter: 2,
      cache_bytes: 2,
    },
    {
      id: "llama-3.1-70b",
      name: "Llama 3.1 70B",
      parameters: 70.6e9,
      layers: 80,
      query_width: 8192,
      key_value_width: 1024,
      bytes_per_parameter: 2,
      cache_bytes: 2,
    },
  ],
  weights: [
    { id: "bf16", name: "16-bit", bytes_per_parameter: 2 },
    { id: "int8", name: "8-bit", bytes_per_parameter: 1 },
    { id: "int4", name: "4-bit", bytes_per_parameter: 0.5 },
  ],
};
