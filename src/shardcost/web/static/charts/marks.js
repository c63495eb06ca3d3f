// Marks of points: kinds are told apart by shape, not by colour alone.

/** By name, the outline around a point. */
export const MARKS = {
  circle: (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  square: (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  diamond: (x, y, r) => {
    const far = r * 1.3;
    return `M${x} ${y - far}l${far} ${far}l${-far} ${far}l${-far} ${-far}z`;
  },
  triangle: (x, y, r) => `M${x} ${y - r * 1.2}L${x + r * 1.15} ${y + r}H${x - r * 1.15}z`,
  cross: (x, y, r) => `M${x - r} ${y - r}L${x + r} ${y + r}M${x + r} ${y - r}L${x - r} ${y + r}`,
};

/** Names of the marks, in the order in which kinds take them. */
export const SHAPES = ["circle", "square", "diamond", "triangle"];
