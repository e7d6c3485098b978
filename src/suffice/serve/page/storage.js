// Small choices that a browser keeps, unless it is told to keep nothing.

// Return what storage holds under a name; a browser that blocks it has nothing.
export function recalled(storage, name) {
  try {
    return window[storage].getItem(name);
  } catch {
    return null;
  }
}

export function remember(storage, name, value) {
  try {
    window[storage].setItem(name, value);
  } catch {
    // The choice is made again next time.
  }
}
