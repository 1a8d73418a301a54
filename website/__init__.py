"""What turns docs/ into a site: formulas as MathML, and pages made from the code itself."""
