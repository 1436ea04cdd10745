/* The text that the animation writes, as pairs "word/guess": what the model writes, and what a mistaken drafter would. */
"use strict";
globalThis.foredraft = globalThis.foredraft || {};

foredraft.words = `
The/A harbour/village woke/slept before/after the/any light/tide did./came. Ropes/Boats creaked,/swayed,
gulls/crowds argued/shouted over/about nothing,/fish, and/but somewhere/nowhere beyond/behind the/a breakwater/lighthouse
a/the bell/horn rang/sounded twice/once and/then thought/spoke better/again of/about a/the third./matter. Old/Young
Maren/Jonas counted/painted boats/nets the/a way/day other/most people/sailors count/spend blessings,/money, out/all
loud/day and/but slightly/always wrong./right. Nobody/Everyone corrected/believed her./him. The/A sea,/wind, she/he
said,/knew, keeps/tells its/no own/old books,/secrets, and/but balances/opens them/it in/by winter./spring. So/Then
she/they wrote/threw nothing/letters down/away and/but forgot/feared nothing/nobody either,/more, and/but when/if the/a
young/new ones/men asked/told her/him how/why many/far had/boats gone/sunk out/down and/or how/why many/soon come/went
back,/home, she/he looked/pointed past/at them/it at/to the/an empty/open moorings/water and/then said:/sighed:
not/almost yet/all all/there of/the them./same. By/At noon/night the/a fog/rain had/was lifted/fallen and/but every/no
single/other mast/sail was/stood where/what it/she should/used be./to.
`
  .trim()
  .split(/\s+/)
  .map((pair) => {
    const [word, guess] = pair.split("/");
    return { word, guess };
  });
