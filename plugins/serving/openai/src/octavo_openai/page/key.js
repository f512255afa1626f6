// The dialog that asks for the API key. Must never know: who needs it.

import { apiKey } from "./api.js";
import { byId, setText } from "./dom.js";

let asked = null;

/** Ask for the key. True once there is one to try, false if the user would rather not; asks once for all who wait. */
export function askKey() {
  asked ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    if (apiKey.get()) setText(byId("key-message"), "The server does not accept this API key.");
    byId("key").value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "use"), { once: true });
    dialog.showModal();
  }).finally(() => (asked = null));
  byId("key-button").hidden = false;
  return asked;
}

/** `changed` is called after a key was given through the button in the page's head. */
export function startKey(changed) {
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    apiKey.set(byId("key").value.trim());
    byId("key-dialog").close("use");
  });
  byId("key-cancel").addEventListener("click", () => byId("key-dialog").close(""));
  byId("key-button").addEventListener("click", async () => {
    if (await askKey()) changed();
  });
  byId("key-button").hidden = !apiKey.get();
}
